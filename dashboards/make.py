#!/usr/bin/env python3
"""Writes the four Grafana boards of this folder from the panels below: make.py [--check]

--check writes nothing and exits 1 where a board is not what its panels say."""

import json
import pathlib
import sys

D = '{destination=~"$destination"}'
ANSWERED = '{destination=~"$destination",outcome="ok"}'
RATE = "[$__rate_interval]"


def of(metric, by="destination", labels=D):
    """Per second, by a label."""
    return f"sum by ({by}) (rate({metric}{labels}{RATE}))"


def quantile(q, metric, by="destination", labels=D):
    return f"histogram_quantile({q}, sum by (le, {by}) (rate({metric}_bucket{labels}{RATE})))".replace("le, )", "le)")


def mean(metric, by="destination", labels=D):
    return f"sum by ({by}) (rate({metric}_sum{labels}{RATE})) / sum by ({by}) (rate({metric}_count{labels}{RATE}))"


# A panel: title, what it is for, unit, then (expression, legend) pairs. A string begins a row; `stat:` before a title makes a
# single number, `stack:` stacks.
FLEET = [
    "At a glance",
    ("stat:Endpoints in service", "Of all configured ones.", "none", ("sum(cema_endpoint_up)", "up"), ("count(cema_endpoint_up)", "of")),
    ("stat:Requests a second", "Answered.", "reqps", ('sum(rate(cema_requests_total{outcome="ok"}[$__rate_interval]))', "")),
    ("stat:In flight", "Of this router.", "none", ("sum(cema_inflight)", "")),
    ("stat:Power", "Metered nodes as measured, others as modelled from their load.", "watt", ("sum(cema_node_power_watts)", "")),
    ("stat:USD an hour", "At configured prices.", "currencyUSD", ("3600 * sum(rate(cema_cost_usd_total[$__rate_interval]))", "")),
    ("stat:Scarcest price", "The congestion price of the destination the fleet lacks most; 0 = nothing is scarce.", "none", ("max(cema_destination_price)", "")),
    "Health",
    ("Endpoints", "1 = takes work. Down, loading, draining, cooling and open circuits are 0.", "none", ("cema_endpoint_up", "{{endpoint}}")),
    ("Circuits", "0 closed, 1 half-open, 2 open.", "none", ("cema_circuit_state", "{{endpoint}}")),
    ("Busy", "Too busy to answer its health page while requests run there.", "none", ("cema_endpoint_busy", "{{endpoint}}")),
    "Load",
    ("In flight", "Requests of this router outstanding.", "none", (f"cema_inflight{D}", "{{destination}}")),
    ("Backlog", "Predicted time until what is outstanding is done (B_d).", "s", (f"cema_backlog_seconds{D}", "{{destination}}")),
    ("Waiting in the router", "Held for a place, and waiting for a first destination.", "none", ("cema_held_requests", "held"), ("cema_queue_depth", "queue")),
    ("Congestion price", "What a second of the destination's time is worth to those who would have it instead.", "none", (f"cema_destination_price{D}", "{{destination}}")),
    ("Pace", "Progress against the figures in force: below 1 it is slower than they say.", "none", (f"cema_destination_pace_ratio{D}", "{{destination}}")),
    ("Connections of clients", "Open now.", "none", ("cema_connections", "{{listener}}")),
    "Power, energy, money",
    ("stack:Power", "By node and where the figure comes from.", "watt", ("cema_node_power_watts", "{{node}} {{source}}")),
    ("stack:Energy of requests", "Joules a second, measured or modelled.", "watt", (of("cema_energy_joules_total", "destination, source"), "{{destination}} {{source}}")),
    ("Joules per request", "What an answered request draws.", "joule",
     (f"sum by (destination) (rate(cema_energy_joules_total{D}{RATE})) / sum by (destination) (rate(cema_requests_total{ANSWERED}{RATE}))", "{{destination}}")),
    ("stack:Money", "USD an hour at configured prices.", "currencyUSD", (f"3600 * {of('cema_cost_usd_total')}", "{{destination}}")),
    ("USD per 1,000 requests", "", "currencyUSD", (f"1000 * sum by (destination) (rate(cema_cost_usd_total{D}{RATE})) / sum by (destination) (rate(cema_requests_total{ANSWERED}{RATE}))", "{{destination}}")),
    ("Round trip", "To each node.", "s", ("cema_node_rtt_seconds", "{{node}}")),
]

ROUTING = [
    "Windows",
    ("Window size", "Requests planned together.", "none", (mean("cema_window_size", "job", ""), "mean"), (quantile(0.95, "cema_window_size", "job", ""), "p95")),
    ("Window wait", "From arrival until a first plan could let a request go.", "s", (quantile(0.5, "cema_window_wait_seconds", "job", ""), "p50"), (quantile(0.99, "cema_window_wait_seconds", "job", ""), "p99")),
    ("Hold", "Further time, because the places it was planned to were taken.", "s", (quantile(0.5, "cema_hold_seconds", "job", ""), "p50"), (quantile(0.99, "cema_hold_seconds", "job", ""), "p99")),
    "Plans",
    ("Plans a second", "By policy.", "ops", (of("cema_solve_duration_seconds_count", "policy", ""), "{{policy}}")),
    ("Solve time", "Tables included.", "s", (quantile(0.5, "cema_solve_duration_seconds", "policy", ""), "{{policy}} p50"), (quantile(0.99, "cema_solve_duration_seconds", "policy", ""), "{{policy}} p99")),
    ("Certified gap", "How far J may be from the best, at most. Policies that do not search prove none.", "percentunit", (quantile(0.5, "cema_solver_gap_ratio", "job", ""), "p50"), (quantile(0.95, "cema_solver_gap_ratio", "job", ""), "p95")),
    ("Joint gain", "J of a greedy choice in the same plan over that of the joint one.", "percentunit", (mean("cema_joint_gain_ratio", "job", ""), "mean")),
    ("Late gain", "How much earlier requests were complete than a greedy choice at their first plan was predicted to have them.", "s", (mean("cema_late_gain_seconds", "job", ""), "mean")),
    ("Rebinds a second", "Waiting requests that a later plan sent elsewhere.", "ops", ("sum(rate(cema_rebinds_total[$__rate_interval]))", "rebinds")),
    "Objective",
    ("stack:Terms of J", "Of the last plan, weighted and normalised.", "none", ('cema_objective{term!="total"}', "{{term}}")),
    ("J", "Of the last plan.", "none", ('cema_objective{term="total"}', "J")),
    ("Congestion price", "", "none", (f"cema_destination_price{D}", "{{destination}}")),
    "Destinations chosen",
    ("stack:Requests a second", "Answered, by destination.", "reqps", (of("cema_requests_total", "destination", ANSWERED), "{{destination}}")),
    ("Share", "Of answered requests.", "percentunit", (of("cema_requests_total", "destination", ANSWERED) + f" / scalar(sum(rate(cema_requests_total{{outcome=\"ok\"}}{RATE})))", "{{destination}}")),
    ("stack:Prompt tokens found in caches", "Expected by the router, and found by the engines that tell.", "none", (of("cema_prefix_tokens_total", "type", D), "{{type}}")),
]

REQUESTS = [
    "Rate and errors",
    ("stack:Requests a second", "By what became of them.", "reqps", ("sum by (outcome) (rate(cema_requests_total[$__rate_interval]))", "{{outcome}}")),
    ("Failed share", "Of requests that had a destination.", "percentunit", ('(sum(rate(cema_requests_total{outcome="failed"}[$__rate_interval])) or vector(0)) / sum(rate(cema_requests_total{outcome=~"ok|failed"}[$__rate_interval]))', "failed")),
    ("stack:Refused a second", "Without an attempt, by reason.", "reqps", ("sum by (reason) (rate(cema_rejected_total[$__rate_interval]))", "{{reason}}")),
    ("stack:Failed attempts a second", "Most are made good elsewhere, by reason.", "reqps", ("sum by (reason) (rate(cema_upstream_attempts_total[$__rate_interval]))", "{{reason}}")),
    ("Streams", "Share of answered requests.", "percentunit", ('sum(rate(cema_requests_total{outcome="ok",stream="true"}[$__rate_interval])) / sum(rate(cema_requests_total{outcome="ok"}[$__rate_interval]))', "streamed")),
    ("Connections cut a second", "Clients that took too long.", "ops", ("sum by (reason) (rate(cema_connections_cut_total[$__rate_interval]))", "{{reason}}")),
    "Latency",
    ("Duration p50", "From arrival to the last byte.", "s", (quantile(0.5, "cema_request_duration_seconds"), "{{destination}}")),
    ("Duration p99", "", "s", (quantile(0.99, "cema_request_duration_seconds"), "{{destination}}")),
    ("Time to first token p50", "From arrival to the first content of a stream.", "s", (quantile(0.5, "cema_time_to_first_token_seconds"), "{{destination}}")),
    ("Time to first token p99", "", "s", (quantile(0.99, "cema_time_to_first_token_seconds"), "{{destination}}")),
    ("Time per output token", "After the first content, median.", "s", (quantile(0.5, "cema_time_per_output_token_seconds"), "{{destination}}")),
    ("Execution", "From the last departure for an endpoint, median.", "s", (quantile(0.5, "cema_execution_seconds"), "{{destination}}")),
    "Tokens",
    ("stack:Completion tokens a second", "", "none", (of("cema_tokens_total", "destination", '{destination=~"$destination",type="completion"}'), "{{destination}}")),
    ("stack:Prompt tokens a second", "", "none", (of("cema_tokens_total", "destination", '{destination=~"$destination",type="prompt"}'), "{{destination}}")),
    "Keys",
    ("stack:Requests by key", "Within the key's limits.", "reqps", ("sum by (key) (rate(cema_key_requests_total[$__rate_interval]))", "{{key}}")),
    ("stack:Refused by key", "Over its rate, concurrency or money.", "reqps", ("sum by (key, limit) (rate(cema_key_refused_total[$__rate_interval]))", "{{key}} {{limit}}")),
    ("stack:Money by key", "USD an hour.", "currencyUSD", ("3600 * sum by (key) (rate(cema_key_cost_usd_total[$__rate_interval]))", "{{key}}")),
]

QUALITY = [
    "Quality prediction",
    ("stat:Store rows", "Profiled prompts.", "none", ("max(cema_quality_store_rows)", "")),
    ("stat:Coverage", "Share of destinations times rows with a score.", "percentunit", ("max(cema_quality_coverage_ratio)", "")),
    ("stat:Embedder", "1 = at work.", "none", ("max(cema_embedder_up)", "")),
    ("stack:Source of predictions", "`store` is a prediction; everything else is a configured prior.", "reqps", ("sum by (source) (rate(cema_quality_source_total[$__rate_interval]))", "{{source}}")),
    ("Share from the store", "", "percentunit", ('sum(rate(cema_quality_source_total{source="store"}[$__rate_interval])) / sum(rate(cema_quality_source_total[$__rate_interval]))', "store")),
    ("Embedding time p99", "", "s", (quantile(0.99, "cema_embed_duration_seconds", "job", ""), "p99")),
    ("Embedding cache", "Texts a second.", "ops", ("sum(rate(cema_embed_cache_hits_total[$__rate_interval]))", "hits"), ("sum(rate(cema_embed_cache_misses_total[$__rate_interval]))", "misses")),
    "Predicted against actual",
    ("Median of predicted over actual", "1 = as predicted.", "none", (quantile(0.5, "cema_predicted_vs_actual_ratio", "quantity", D), "{{quantity}}")),
    ("Seconds", "Predicted over actual completion time, median by destination.", "none", (quantile(0.5, "cema_predicted_vs_actual_ratio", "destination", '{destination=~"$destination",quantity="seconds"}'), "{{destination}}")),
    ("Tokens", "Predicted over counted completion tokens, median by destination.", "none", (quantile(0.5, "cema_predicted_vs_actual_ratio", "destination", '{destination=~"$destination",quantity="tokens"}'), "{{destination}}")),
    ("Energy", "Predicted over modelled at the tokens counted, median by destination.", "none", (quantile(0.5, "cema_predicted_vs_actual_ratio", "destination", '{destination=~"$destination",quantity="joules"}'), "{{destination}}")),
    ("Lateness", "Completion times over those the figures predict, as plans correct them.", "none", (f"cema_destination_lateness_ratio{D}", "{{destination}}")),
    "Calibration",
    ("Drift of figures", "Measured over configured: far from 1 the profile is out of date.", "none", (f"cema_profile_drift_ratio{D}", "{{destination}} {{quantity}}")),
    ("Pace of the moment", "", "none", (f"cema_destination_pace_ratio{D}", "{{destination}}")),
    ("Prefixes found", "Share of what was expected in caches that engines found there.", "percentunit", (f"cema_prefix_found_ratio{D}", "{{destination}}")),
    ("Slots believed wrongly", "1 = the engine's queue contradicts max_concurrency.", "none", (f"cema_slot_cap_mismatch{D}", "{{destination}}")),
]

BOARDS = {
    "fleet": ("CEMA-Router: fleet", FLEET),
    "routing": ("CEMA-Router: routing", ROUTING),
    "requests": ("CEMA-Router: requests", REQUESTS),
    "quality": ("CEMA-Router: quality and calibration", QUALITY),
}


def panel(number, spec, place):
    title, about, unit, *targets = spec
    kind, _, title = title.rpartition(":")
    source = {"type": "prometheus", "uid": "${datasource}"}
    made = {
        "id": number, "type": "stat" if kind == "stat" else "timeseries", "title": title, "description": about,
        "datasource": source, "gridPos": place,
        "targets": [{"refId": chr(65 + i), "datasource": source, "expr": expr, "legendFormat": legend or "__auto", "instant": kind == "stat", "range": kind != "stat"}
                    for i, (expr, legend) in enumerate(targets)],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0 if kind != "" or unit in ("reqps", "ops", "watt") else None, "custom": {}}, "overrides": []},
    }
    if made["fieldConfig"]["defaults"]["min"] is None:
        del made["fieldConfig"]["defaults"]["min"]
    if kind == "stat":
        made["fieldConfig"]["defaults"].pop("custom")
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "none", "textMode": "auto"}
    else:
        made["fieldConfig"]["defaults"]["custom"] = {"lineWidth": 1, "fillOpacity": 15 if kind == "stack" else 5, "showPoints": "never"}
        if kind == "stack":
            made["fieldConfig"]["defaults"]["custom"]["stacking"] = {"mode": "normal", "group": "A"}
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return made


def board(name):
    title, specs = BOARDS[name]
    panels, x, y, height = [], 0, 0, 0
    for number, spec in enumerate(specs, 1):
        if isinstance(spec, str):
            x, y = 0, y + height
            panels.append({"id": number, "type": "row", "title": spec, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
            y, height = y + 1, 0
            continue
        wide, high = (4, 4) if spec[0].startswith("stat:") else (8, 8)
        if x + wide > 24:
            x, y = 0, y + height
        panels.append(panel(number, spec, {"h": high, "w": wide, "x": x, "y": y}))
        x, height = x + wide, max(high, height)
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
        {"name": "destination", "label": "Destination", "type": "query", "datasource": source, "query": "label_values(cema_inflight, destination)",
         "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 1, "current": {"text": "All", "value": "$__all"}},
    ]
    links = [{"type": "dashboards", "tags": ["cema-router"], "title": "CEMA-Router", "asDropdown": False, "includeVars": True, "keepTime": True}]
    return {
        "uid": f"cema-{name}", "title": title, "tags": ["cema-router"], "schemaVersion": 39, "version": 1, "editable": True,
        "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "graphTooltip": 1, "links": links,
        "templating": {"list": variables}, "annotations": {"list": []}, "panels": panels,
    }


def main():
    folder, is_check = pathlib.Path(__file__).parent, "--check" in sys.argv
    stale = []
    for name in BOARDS:
        text, path = json.dumps(board(name), indent=1) + "\n", folder / f"{name}.json"
        if is_check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not is_check:
            path.write_text(text)
    if stale:
        sys.exit(f"not what make.py says: {', '.join(stale)}; run dashboards/make.py")


main()
