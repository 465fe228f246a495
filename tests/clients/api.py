"""Every operation of the control plane's description, with data that fit it and data that do not.

Each round is a run of schemathesis against the same `weir dev`. Usage: api.py WEIR-PROGRAM
[--quick] [--seed N]. The last line is a JSON document: rounds, examples, failures.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

# Examples for an operation and round; coverage of each bound comes on top.
EXAMPLES = 20
EXAMPLES_QUICK = 4
# A full run has to reach this many.
EXAMPLES_MIN = 10_000
# Left out: whether a wrong token is refused is a test of its own (ten of them close the door for
# the rest of the minute, which this check takes for a fault), and whether all that fits the schema
# is accepted (a plan's numbers also have to fit each other, and names to exist).
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
]
ROUND_SECONDS_MAX = 1_800


@contextlib.contextmanager
def weir_dev(program, folder):
    """A control plane with a gateway and shadow-compare, so that nothing is missing."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
    environment["XDG_CONFIG_HOME"] = str(folder / "config")
    log = open(folder / "weir.log", "wb")
    process = subprocess.Popen(
        [program, "dev", "-o", "json", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, stderr=log, env=environment,
    )
    try:
        text = ""
        while True:
            line = process.stdout.readline().decode()
            if not line:
                sys.exit("weir dev ended early:\n" + (folder / "weir.log").read_text())
            text += line
            with contextlib.suppress(ValueError):
                yield json.loads(text)
                break
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        log.close()


def ask(base, token, method, path, body=None):
    request = urllib.request.Request(
        base + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={
            "authorization": f"Bearer {token}", "content-type": "application/json",
            "if-match": "*",
        },
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def fill(base, admin):
    """Something of everything, and where it is."""
    limit = {"capacity": 10, "refill": "1/s"}
    ask(base, admin, "PUT", "/v1/plans/known", {"burst": limit})
    ask(base, admin, "PUT", "/v1/clients/known", {"plan": "known"})
    key = ask(base, admin, "POST", "/v1/keys", {"client": "known"})["object"]["id"]
    moved = {"clients": ["known"], "phase": "shadow"}
    ask(base, admin, "POST", "/v1/rollouts/known:set", moved)
    other = ask(base, admin, "POST", "/v1/tokens", {"name": "known", "role": "viewer"})
    return {"names": "known", "keys": key, "tokens": other["object"]["id"]}


def known(there):
    """A configuration that asks for what is there."""
    operations = [
        ("^/v1/(plans|rollouts|gates)/", "path.name", there["names"]),
        ("^/v1/clients/", "path.id", there["names"]),
        ("^/v1/keys/", "path.id", there["keys"]),
        ("^/v1/tokens/", "path.id", there["tokens"]),
    ]
    return "\n".join(
        f'[[operations]]\ninclude-path-regex = "{path}"\nparameters = {{ "{name}" = "{value}" }}'
        for path, name, value in operations
    )


def round_of(folder, base, name, token, examples, seed, configuration=""):
    """One run; how many examples, and what was wrong."""
    config = folder / f"{name}.toml"
    config.write_text(configuration)
    command = [
        str(pathlib.Path(sys.executable).parent / "schemathesis"), "--config-file", str(config),
        "run", f"{base}/openapi.json", "--url", base, "--no-color", "--seed", str(seed),
        "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples),
        "--checks", ",".join(CHECKS), "--continue-on-failure", "--warnings", "off",
        "--suppress-health-check", "all", "--request-timeout", "30",
        "--exclude-path-regex", "^/(metrics|livez|buildz)$",
    ]
    if token:
        command += ["--header", f"Authorization: Bearer {token}"]
    began = time.monotonic()
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=ROUND_SECONDS_MAX
    )
    counted = re.search(r"(\d+) generated", ran.stdout)
    found = {
        "round": name, "examples": int(counted.group(1)) if counted else 0,
        "seconds": round(time.monotonic() - began, 1), "ok": ran.returncode == 0,
    }
    if ran.returncode != 0:
        print(ran.stdout[-20_000:], ran.stderr[-2_000:], file=sys.stderr)
    return found


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("weir")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    examples = EXAMPLES_QUICK if given.quick else EXAMPLES
    with tempfile.TemporaryDirectory(prefix="weir-api-") as folder:
        folder = pathlib.Path(folder)
        with weir_dev(given.weir, folder) as dev:
            base = dev["plans_api"]
            operator = (folder / ".weir/operator.token").read_text().strip()
            made = lambda role: ask(
                base, operator, "POST", "/v1/tokens", {"name": role, "role": role}
            )["token"]
            there = fill(base, operator)
            rounds = [
                ("nobody", None, ""),
                ("gateway", made("gateway"), ""),
                ("service", made("service"), ""),
                ("admin-known", made("admin"), known(there)),
                ("admin", made("admin"), ""),
            ]
            if given.quick:
                rounds = [one for one in rounds if one[0] in ("nobody", "admin-known")]
            ran = [
                round_of(folder, base, name, token, examples, given.seed, configuration)
                for name, token, configuration in rounds
            ]
    total = sum(one["examples"] for one in ran)
    enough = given.quick or EXAMPLES_MIN <= total
    ok = enough and all(one["ok"] for one in ran)
    print(json.dumps({"ok": ok, "examples": total, "seed": given.seed, "rounds": ran}))
    sys.exit(0 if ok else 1)


main()
