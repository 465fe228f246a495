"""Real services behind `weir dev --upstream`, called by real clients.

Every scene runs twice, against the service itself and through the gateway, and tells all that a
client or service can see of it. The two must be equal; what the gateway adds on purpose is named
in `ADDED_*`. Usage: check.py WEIR-PROGRAM
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import grpc
import httpx
import requests
import uvicorn
import websockets
from httpx_sse import connect_sse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route, WebSocketRoute
from sse_starlette.sse import EventSourceResponse
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

# What the gateway tells a caller of its limits and of the request.
ADDED_TO_ANSWERS = {"ratelimit", "ratelimit-policy", "x-request-id"}
# What it tells a service; and the key, which a service never sees.
ADDED_TO_REQUESTS = {
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
    "x-weir-client",
    "x-weir-plan",
}
KEPT_FROM_SERVICES = {"x-api-key"}
# Of a connection, which each of them has of its own.
HOPS = {"connection", "keep-alive", "transfer-encoding", "te"}
# Differ from one run to the next.
RUNS = {"date"}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def fields(headers, gone):
    """A sorted list of what is left; a field that stands twice stays twice."""
    pairs = headers.multi_items() if hasattr(headers, "multi_items") else list(headers.items())
    return sorted([n.lower(), v] for n, v in pairs if n.lower() not in gone)


# ---------------------------------------------------------------- a service over HTTP


async def seen(request: Request):
    """Tells the client what arrived."""
    body = await request.body()
    gone = ADDED_TO_REQUESTS | KEPT_FROM_SERVICES | HOPS | {"host"}
    return JSONResponse(
        {
            "method": request.method,
            "path": request.url.path,
            "query": request.url.query,
            "fields": fields(request.headers, gone),
            "bytes": len(body),
            "sum": sum(body) % 65_521,
        },
        status_code=int(request.query_params.get("status", "200")),
        headers={"x-own": "1", "etag": '"v1"', "cache-control": "no-store"},
    )


async def pieces(request: Request):
    """Answers piece by piece; each waits until the client has asked for it."""

    async def body():
        for n in range(5):
            yield f"piece {n}\n".encode()
            await asyncio.sleep(0.2)

    return StreamingResponse(body(), media_type="text/plain")


async def events(request: Request):
    """Server-sent events, with ids, names, comments and pauses."""
    last = int(request.headers.get("last-event-id", "-1"))

    async def body():
        for n in range(last + 1, last + 6):
            yield {"id": str(n), "event": "tick", "data": f"line 1 of {n}\nline 2", "retry": 1_000}
            await asyncio.sleep(0.2)

    return EventSourceResponse(body(), ping=0.3)


async def cookies(request: Request):
    response = PlainTextResponse("two")
    response.set_cookie("a", "1")
    response.set_cookie("b", "2", httponly=True)
    return response


async def nothing(request: Request):
    return Response(status_code=204)


async def elsewhere(request: Request):
    return RedirectResponse("/seen?from=redirect", status_code=307)


async def chat(websocket):
    """Echoes over starlette's WebSocket, with a subprotocol; `bye N` closes with that code."""
    await websocket.accept(subprotocol="chat.v2", headers=[(b"x-own", b"1")])
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        if text is not None and text.startswith("bye "):
            await websocket.close(code=int(text[4:]), reason="as you say")
            return
        if text is not None:
            await websocket.send_text(text)
        else:
            await websocket.send_bytes(message["bytes"])


async def refuses(websocket):
    await websocket.close(code=1008)  # before accept: the handshake is a 403


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"]
APP = Starlette(
    routes=[
        Route("/seen", seen, methods=METHODS),
        Route("/seen/{rest:path}", seen, methods=METHODS),
        Route("/pieces", pieces),
        Route("/events", events),
        Route("/cookies", cookies),
        Route("/nothing", nothing),
        Route("/elsewhere", elsewhere),
        WebSocketRoute("/chat", chat),
        WebSocketRoute("/refuses", refuses),
    ]
)


@contextlib.asynccontextmanager
async def http_service():
    config = uvicorn.Config(APP, port=free_port(), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{config.port}"
    server.should_exit = True
    await task


# ---------------------------------------------------------------- a service over gRPC


def raw(handler_of, behaviour):
    return handler_of(behaviour, request_deserializer=bytes, response_serializer=bytes)


def told(context):
    gone = ADDED_TO_REQUESTS | KEPT_FROM_SERVICES
    pairs = [(k, v) for k, v in context.invocation_metadata() if k not in gone]
    return json.dumps(sorted([k, v if isinstance(v, str) else v.hex()] for k, v in pairs)).encode()


def unary(request, context):
    context.send_initial_metadata((("x-head", "1"),))
    context.set_trailing_metadata((("x-tail", "2"), ("x-tail-bin", b"\x00\xff")))
    return told(context) + b"|" + request


def failing(request, context):
    context.set_trailing_metadata((("x-tail", "2"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: é %")


def many(request, context):
    for n in range(5):
        yield b"%d " % n + request
        time.sleep(0.2)


def sums(requests_, context):
    return b"%d" % sum(len(request) for request in requests_)


def echo(requests_, context):
    yield from requests_


def slow(request, context):
    time.sleep(5)
    return b"late"


def forbidden(request, context):
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the service's own")


@contextlib.contextmanager
def grpc_service():
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(16))
    methods = {
        "Unary": raw(grpc.unary_unary_rpc_method_handler, unary),
        "Failing": raw(grpc.unary_unary_rpc_method_handler, failing),
        "Many": raw(grpc.unary_stream_rpc_method_handler, many),
        "Sums": raw(grpc.stream_unary_rpc_method_handler, sums),
        "Echo": raw(grpc.stream_stream_rpc_method_handler, echo),
        "Slow": raw(grpc.unary_unary_rpc_method_handler, slow),
        "Forbidden": raw(grpc.unary_unary_rpc_method_handler, forbidden),
    }
    handler = grpc.method_handlers_generic_handler("test.Service", methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0)


# ---------------------------------------------------------------- the gateway


@contextlib.contextmanager
def gateway(weir, upstream, burst="10000@10000/s"):
    """`weir dev --upstream`, with a plan that is never used up unless said otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CONFIG_HOME": folder}
        environment.pop("CARGO", None)
        child = subprocess.Popen(
            [weir, "dev", "--port", "0", "-o", "json", "--upstream", upstream],
            cwd=folder, stdout=subprocess.PIPE, text=True, env=environment,
        )
        try:
            text, said = "", None
            while said is None:
                line = child.stdout.readline()
                assert line, "weir dev ended early"
                text += line
                with contextlib.suppress(json.JSONDecodeError):
                    said = json.loads(text)
            subprocess.run(
                [weir, "plan", "set", "demo", "--burst", burst, "--reason", "clients", "--wait"],
                cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment,
            )
            yield said["gateway"], said["key"]
        finally:
            child.terminate()
            child.wait(20)


# ---------------------------------------------------------------- scenes over HTTP


def seen_by_client(response):
    gone = ADDED_TO_ANSWERS | HOPS | RUNS
    return {
        "status": response.status_code,
        "reason": getattr(response, "reason_phrase", getattr(response, "reason", "")),
        "fields": fields(response.headers, gone),
        "body": response.text,
    }


def http_scenes(base, key, version):
    """What httpx sees, over either version of HTTP."""
    out = {}
    auth = {"x-api-key": key}
    versions = {"http1": version == "http1", "http2": version == "http2"}
    with httpx.Client(base_url=base, headers=auth, timeout=20, **versions) as client:
        for method in ["GET", "HEAD", "DELETE", "OPTIONS", "PROPFIND"]:
            out[method] = seen_by_client(client.request(method, "/seen?a=1&b=%2F&c=é&a=2"))
        for path in ["/seen/%7Euser/a%20b/c;v=1", "/seen/x//y", "/seen/-._~!$&'()*+,=:@"]:
            out[path] = seen_by_client(client.get(path))
        for status in [201, 206, 404, 418, 429, 500, 503]:
            out[f"status {status}"] = seen_by_client(client.get(f"/seen?status={status}"))
        blob = bytes(range(256)) * 4_096
        out["upload"] = seen_by_client(client.put("/seen", content=blob))
        out["no length"] = seen_by_client(client.post("/seen", content=(blob[:999] for _ in range(9))))
        out["form"] = seen_by_client(client.post("/seen", data={"a": "é", "b": "2"}))
        out["files"] = seen_by_client(client.post("/seen", files={"f": ("n.bin", blob[:99])},
                                                  headers={"content-type": "multipart/form-data; boundary=x"}))
        out["empty"] = seen_by_client(client.post("/seen", content=b""))
        out["cookies"] = seen_by_client(client.get("/cookies", headers={"cookie": "a=1; b=2"}))
        client.cookies.clear()
        out["nothing"] = seen_by_client(client.get("/nothing"))
        out["redirect"] = seen_by_client(client.get("/elsewhere"))
        out["fields"] = seen_by_client(
            client.get("/seen", headers=[("x-twice", "1"), ("x-twice", "2"), ("accept", "text/x;q=0.5"),
                                         ("authorization", "Basic dTpw"), ("x_under", "kept"),
                                         ("range", "bytes=0-1"), ("if-none-match", '"v0"'),
                                         ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")])
        )
        out["missing"] = seen_by_client(client.get("/nowhere"))
        with client.stream("GET", "/pieces") as response:
            out["pieces"] = in_time(response.iter_lines())
    return out


def in_time(items):
    """The items, and whether each came by itself and not in one heap with the one before."""
    got, last, gaps = [], time.monotonic(), []
    for item in items:
        now = time.monotonic()
        gaps.append(now - last)
        got.append(item)
        last = now
    return {"items": got, "apart": all(gap > 0.05 for gap in gaps[1:])}


def requests_scenes(base, key):
    """What requests (urllib3) sees."""
    out = {}
    with requests.Session() as session:
        session.headers["x-api-key"] = key
        out["get"] = seen_by_client(session.get(base + "/seen?x=1"))
        out["post"] = seen_by_client(session.post(base + "/seen", json={"a": [1, 2]}))
        out["generator"] = seen_by_client(session.post(base + "/seen", data=(b"x" * 10 for _ in range(5))))
        out["redirect"] = seen_by_client(session.get(base + "/elsewhere", allow_redirects=False))
    return out


def sse_scenes(base, key):
    """What httpx-sse sees, from the start and from the middle."""
    out = {}
    with httpx.Client(headers={"x-api-key": key}, timeout=20) as client:
        for last in [None, "6"]:
            headers = {} if last is None else {"last-event-id": last}
            with connect_sse(client, "GET", base + "/events", headers=headers) as source:
                heard = in_time(event for event in source.iter_sse() if event.data)
                heard["items"] = [[e.id, e.event, e.data, e.retry] for e in heard["items"]]
                heard["head"] = fields(source.response.headers, ADDED_TO_ANSWERS | HOPS | RUNS)
                out[f"after {last}"] = heard
    return out


# ---------------------------------------------------------------- scenes over WebSocket


async def close_of(socket_):
    with contextlib.suppress(websockets.ConnectionClosed):
        while True:
            await socket_.recv()
    return [socket_.close_code, socket_.close_reason]


async def websocket_scenes(base, key):
    out = {}
    url = base.replace("http://", "ws://")
    auth = {"x-api-key": key}
    options = {"additional_headers": auth, "subprotocols": ["chat.v1", "chat.v2"], "max_size": None}
    async with connect(url + "/chat", **options) as ws:
        gone = ADDED_TO_ANSWERS | RUNS | {"sec-websocket-accept", "connection", "upgrade"}
        out["head"] = [ws.response.status_code, ws.subprotocol,
                       fields(dict(ws.response.headers.raw_items()), gone)]
        out["extensions"] = [type(e).__name__ for e in ws.protocol.extensions]
        for text in ["", "hello", "é" * 1_000]:
            await ws.send(text)
            out[f"text {len(text)}"] = await ws.recv() == text
        for size in [0, 1, 125, 126, 65_535, 65_536, 3_000_000]:
            blob = os.urandom(size)
            await ws.send(blob)
            out[f"binary {size}"] = await ws.recv() == blob
        await ws.send(["in ", "three ", "pieces"])
        out["pieces"] = await ws.recv()
        out["pong"] = 0 <= await (await ws.ping(b"are you there")) < 10
        await ws.send("bye 4321")
        out["closed by service"] = await close_of(ws)
    async with connect(url + "/chat", **options) as ws:
        await ws.close(code=4000, reason="mine")
        out["closed by client"] = [ws.close_code, ws.close_reason]
    try:
        async with connect(url + "/refuses", **options):
            out["refused"] = "accepted"
    except websockets.InvalidStatus as refused:
        out["refused"] = refused.response.status_code
    return out


async def pinging(base, key):
    """The `websockets` server as the service: its pings, its close, what it hears of ours."""
    out = {}
    async with connect(base.replace("http://", "ws://"), additional_headers={"x-api-key": key}) as ws:
        out["first"] = await ws.recv()
        await asyncio.sleep(0.5)
        await ws.send("done")
        out["latency known"] = await ws.recv()
        out["close"] = await close_of(ws)
    return out


@contextlib.asynccontextmanager
async def websocket_service(heard):
    async def handler(ws):
        await ws.send("welcome")
        text = await ws.recv()
        pong = await (await ws.ping())
        await ws.send(f"{text}: {0 <= pong < 10}")
        await ws.close(1001, "going")
        heard.append([ws.close_code, ws.close_reason, ws.request.path])

    async with serve(handler, "127.0.0.1", 0, ping_interval=0.1, ping_timeout=5) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


# ---------------------------------------------------------------- scenes over gRPC


def call_of(call):
    """Everything that a caller sees of an ended call."""
    def pairs(metadata):
        gone = ADDED_TO_ANSWERS | RUNS
        return sorted([k, v if isinstance(v, str) else v.hex()] for k, v in metadata or () if k not in gone)

    return {"code": call.code().name, "details": call.details(),
            "head": pairs(call.initial_metadata()), "tail": pairs(call.trailing_metadata())}


def grpc_scenes(target, key):
    out = {}
    metadata = (("x-api-key", key), ("x-mine", "1"), ("x-mine-bin", b"\x01\xfe"))
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
               ("grpc.primary_user_agent", "check")]
    with grpc.insecure_channel(target, options=options) as channel:
        def method(kind, name):
            return getattr(channel, kind)(f"/test.Service/{name}", bytes, bytes)

        for size in [0, 10, 1_000_000]:
            answer, call = method("unary_unary", "Unary").with_call(b"x" * size, metadata=metadata, timeout=20)
            service_saw, echoed = answer.split(b"|", 1)
            out[f"unary {size}"] = [json.loads(service_saw), len(echoed), call_of(call)]
        answer, call = method("unary_unary", "Unary").with_call(
            b"x" * 10_000, metadata=metadata, timeout=20, compression=grpc.Compression.Gzip)
        out["gzip"] = [len(answer.split(b"|", 1)[1]), call_of(call)]
        for name in ["Failing", "Forbidden", "Unknown"]:
            try:
                method("unary_unary", name)(b"x", metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                out[name] = call_of(error)
        many_ = method("unary_stream", "Many")(b"x", metadata=metadata, timeout=20)
        out["many"] = in_time(item.decode() for item in many_) | call_of(many_)
        answer, call = method("stream_unary", "Sums").with_call(
            (b"x" * n for n in range(100)), metadata=metadata, timeout=20)
        out["sums"] = [answer.decode(), call_of(call)]

        def alternating():
            for n in range(5):
                yield b"%d" % n
                turn.wait(5)
                turn.clear()

        import threading

        turn = threading.Event()
        echo_ = method("stream_stream", "Echo")(alternating(), metadata=metadata, timeout=20)
        heard = []
        for item in echo_:
            heard.append(item.decode())
            turn.set()
        out["echo"] = [heard, call_of(echo_)]
        try:
            method("unary_unary", "Slow")(b"x", metadata=metadata, timeout=0.5)
        except grpc.RpcError as error:
            out["deadline"] = error.code().name
        cancelled = method("unary_stream", "Many")(b"x", metadata=metadata, timeout=20)
        next(cancelled)
        cancelled.cancel()
        out["cancelled"] = cancelled.code().name
        calls = [method("unary_unary", "Unary").future(b"%d" % n, metadata=metadata, timeout=20) for n in range(200)]
        out["at once"] = sorted(int(call.result().split(b"|", 1)[1]) for call in calls) == list(range(200))
    return out


# ---------------------------------------------------------------- refusals as clients see them


def refused_over_http(base, key):
    with httpx.Client(headers={"x-api-key": key}) as client:
        first, second = (client.get(base + "/seen") for _ in range(2))
    body = second.json()
    return {
        "admitted": first.status_code,
        "refused": [second.status_code, body["code"], body["retry_after"] == int(second.headers["retry-after"])],
    }


async def refused_over_websocket(base, key):
    try:
        async with connect(base.replace("http://", "ws://") + "/chat", additional_headers={"x-api-key": key}):
            return {"refused": "accepted"}
    except websockets.InvalidStatus as refused:
        return {"refused": [refused.response.status_code, "retry-after" in refused.response.headers]}


def refused_over_grpc(target, key):
    out = {}
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary("/test.Service/Unary", bytes, bytes)
        call(b"x", metadata=(("x-api-key", key),), timeout=20)
        for name, shown in [("used up", key), ("unknown key", "nobodys"), ("no key", None)]:
            try:
                call(b"x", metadata=(("x-api-key", shown),) if shown else (), timeout=20)
            except grpc.RpcError as error:
                told = dict(error.initial_metadata() or ()) | dict(error.trailing_metadata() or ())
                out[name] = [error.code().name, int(told.get("grpc-retry-pushback-ms", 0)) > 0]
    return out


# ---------------------------------------------------------------- comparing


def differences(direct, through, path=""):
    if isinstance(direct, dict) and isinstance(through, dict):
        for name in sorted(direct.keys() | through.keys()):
            yield from differences(direct.get(name), through.get(name), f"{path}/{name}")
    elif direct != through:
        yield f"{path}:\n    direct  {direct!r}\n    through {through!r}"


def compare(name, direct, through, found):
    different = list(differences(direct, through))
    print(f"{name}: {len(direct)} scenes, {len(different)} differences", flush=True)
    for line in different:
        print("  " + line)
    found.extend(different)
    assert direct, "nothing was looked at"


async def main(weir):
    found = []
    run = asyncio.to_thread
    async with http_service() as service:
        with gateway(weir, service) as (base, key):
            direct = await run(http_scenes, service, key, "http1")
            compare("httpx, HTTP/1.1", direct, await run(http_scenes, base, key, "http1"), found)
            # uvicorn speaks HTTP/1.1 alone: over HTTP/2 the client must see the same through us.
            http2 = without_reasons(await run(http_scenes, base, key, "http2"))
            compare("httpx, HTTP/2", without_reasons(direct), http2, found)
            direct = await run(requests_scenes, service, key)
            compare("requests", direct, await run(requests_scenes, base, key), found)
            direct = await run(sse_scenes, service, key)
            assert direct["after None"]["apart"], direct
            compare("httpx-sse", direct, await run(sse_scenes, base, key), found)
            direct = await websocket_scenes(service, key)
            compare("websockets", direct, await websocket_scenes(base, key), found)
    heard = []
    async with websocket_service(heard) as service:
        with gateway(weir, service) as (base, key):
            direct = await pinging(service, key)
            compare("websockets server", direct, await pinging(base, key), found)
            while len(heard) < 2:
                await asyncio.sleep(0.01)
            compare("what it heard", {"close": heard[0]}, {"close": heard[1]}, found)
    with grpc_service() as service:
        with gateway(weir, f"grpc://{service}") as (base, key):
            direct = await run(grpc_scenes, service, key)
            through = await run(grpc_scenes, base.removeprefix("http://"), key)
            compare("grpcio", direct, through, found)
        with gateway(weir, f"grpc://{service}", "1@1/h") as (base, key):
            expected = {"used up": ["RESOURCE_EXHAUSTED", True],
                        "unknown key": ["UNAUTHENTICATED", False], "no key": ["UNAUTHENTICATED", False]}
            got = await run(refused_over_grpc, base.removeprefix("http://"), key)
            compare("refused over gRPC", expected, got, found)
    async with http_service() as service:
        with gateway(weir, service, "1@1/h") as (base, key):
            expected = {"admitted": 200, "refused": [429, "quota_exceeded", True]}
            compare("refused over HTTP", expected, await run(refused_over_http, base, key), found)
            got = await refused_over_websocket(base, key)
            compare("refused over WebSocket", {"refused": [429, True]}, got, found)
    print(f"{'failed' if found else 'ok'}: {len(found)} differences")
    return 1 if found else 0


def without_reasons(scenes):
    """HTTP/2 has no reason phrases, and a client of it sends none of HTTP/1.1's fields."""
    return json.loads(json.dumps(scenes), object_hook=lambda o: {k: v for k, v in o.items() if k != "reason"})


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
