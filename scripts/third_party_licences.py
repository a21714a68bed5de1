"""The licences of everything that is linked into the binary, as one text: usage third_party_licences.py > FILE

Each crate with its version and what its authors declare, and the licence files it came with, each text once. Standard
library only."""

import json
import pathlib
import re
import subprocess
import sys

NAMES = re.compile(r"(un)?licen[cs]e|copying|notice|copyright", re.IGNORECASE)


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def linked(metadata):
    """Ids of the crates that the router is made of, build scripts and tests apart."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, todo = set(), [metadata["resolve"]["root"]]
    while todo:
        for dependency in nodes[todo.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                todo.append(dependency["pkg"])
    return found


def texts_of(folder):
    """Licence files of a crate, those of sources it brings along included, without examples and the like."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and NAMES.match(path.name) and path.suffix in ("", ".md", ".txt") and path.stat().st_size < 200_000:
            yield path.read_text(errors="replace").strip()


def main():
    host = re.search(r"^host: (\S+)", run("rustc", "-vV"), re.MULTILINE)[1]
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host))
    ids = linked(metadata)
    packages = sorted((p for p in metadata["packages"] if p["id"] in ids), key=lambda p: (p["name"], p["version"]))
    users = {}
    print("What is linked into cema-router, with the licences it is under. The texts follow.\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or 'see its licence file'}")
        for text in texts_of(pathlib.Path(package["manifest_path"]).parent):
            users.setdefault(text, []).append(name)
    for text, names in users.items():
        print(f"\n{'-' * 100}\n{', '.join(dict.fromkeys(names))}\n\n{text}")
    print(f"{len(packages)} crates, {len(users)} texts", file=sys.stderr)


if __name__ == "__main__":
    main()
