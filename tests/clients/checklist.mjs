// What the client scripts in JavaScript share; the counterpart of checklist.py.
import { strict as assert } from "node:assert";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

export const BASE_URL = process.env.CEMA_BASE_URL;
export const MODEL = process.env.CEMA_MODEL;
export const KEY = process.env.CEMA_KEY;
const OBSERVER = process.env.CEMA_OBSERVER;

// Models with an endpoint of their own: what fails there must not keep other checks from being served.
export const BUSY = "acme/busy";
export const BROKEN = "acme/broken";

export const ANYTHING = "Name one colour."; // for servers that are not scripted
export const UNICODE = "日本語 🙂 é";
export const OVERFLOW = "This model's maximum context length is 1024 tokens";
// Not in alphabetical order: the order of properties steers a model.
export const SCHEMA = {
  type: "object",
  properties: { zeta: { type: "string" }, alpha: { type: "string" } },
  required: ["zeta"],
};

/** Loads an installed package: they are not beside this file. */
export const load = createRequire(`${process.env.CEMA_NODE_MODULES}/here.js`);

const checks = [];

/** A check that needs the scripted endpoint. */
export const check = (name, run) => checks.push({ name, run, isForAll: false });

/** A check that any server must pass. */
export const everywhere = (name, run) => checks.push({ name, run, isForAll: true });

export const lastBody = async () => (await fetch(`${OBSERVER}/last_body`)).text();

export const answersCut = async () => Number(await (await fetch(`${OBSERVER}/answers_cut`)).text());

/** Within a second the router has closed one more connection than the `before` ones to the endpoint. */
export async function expectUpstreamClosed(before) {
  const deadline = Date.now() + 1000;
  while ((await answersCut()) <= before) {
    assert(Date.now() < deadline, "the endpoint still generates for a client that has left");
    await sleep(10);
  }
}

/** What `run` throws, which must be an instance of `kind`. */
export async function thrown(kind, run) {
  let outcome;
  try {
    outcome = await run();
  } catch (error) {
    assert(error instanceof kind, `${error.constructor.name}, not ${kind.name}: ${error.message}`);
    return error;
  }
  assert.fail(`no ${kind.name} but ${JSON.stringify(outcome)}`);
}

/** Runs the checks that this endpoint can serve and ends the process. */
export async function run() {
  let failed = 0;
  for (const { name, run, isForAll } of checks) {
    if (!OBSERVER && !isForAll) continue;
    try {
      await run();
      console.log(`ok ${name}`);
    } catch (error) {
      // Every check reports; one that fails must not hide the others.
      failed += 1;
      console.log(`FAILED ${name}: ${error.message}`);
      console.error(error);
    }
  }
  process.exit(failed ? 1 : 0);
}
