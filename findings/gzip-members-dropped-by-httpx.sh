#!/usr/bin/env bash
# httpx 0.28.1, and httpx2 2.16.2, on which lightkube 1.0 is built; for comparison requests 2.34.2 with urllib3 2.8.0, and aiohttp
# 3.14.5. Python 3.11.
#
# A body in gzip may be several members one after another (RFC 1952, section 2.2), and a server that ends a member at each flush sends
# a stream of events so. kube-apiserver 1.37 does in its watches that begin with a list. httpx and httpx2 decode the first member and
# drop whatever follows without an error, of a stream as of a body that is read at once. A watch stays open, shows the events of its
# first flush and never another one. Its read timeout (here a third of the stream's duration) does not end it, since bytes do arrive.
# requests and aiohttp decode all members. Asked for with Accept-Encoding: identity, httpx sees all.
#
# Seen:
#   httpx stream: i1 i2 after 3 s, no error
#   httpx body: i1 i2
#   httpx identity: i1 i2 t1 t2 t3 t4 t5 t6
#   httpx2 stream: i1 i2 after 3 s, no error
#   httpx2 body: i1 i2
#   httpx2 identity: i1 i2 t1 t2 t3 t4 t5 t6
#   requests stream: i1 i2 t1 t2 t3 t4 t5 t6
#   aiohttp stream: i1 i2 t1 t2 t3 t4 t5 t6
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"

python3 -m venv environment
environment/bin/pip install --quiet httpx==0.28.1 httpx2==2.16.2 requests==2.34.2 urllib3==2.8.0 aiohttp==3.14.5

cat >seen.py <<'PYTHON'
import asyncio
import gzip
import http.server
import json
import threading
import time

import aiohttp
import httpx
import httpx2
import requests


def event(kind, name):
    metadata = {"name": name, "namespace": "default", "resourceVersion": "1"}
    return json.dumps({"type": kind, "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}}).encode() + b"\n"


class Watch(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        compressed = "gzip" in self.headers.get("Accept-Encoding", "")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        for flush in [event("ADDED", "i1") + event("ADDED", "i2")] + [event("ADDED", f"t{i}") for i in range(1, 7)]:
            part = gzip.compress(flush, 1) if compressed else flush
            self.wfile.write(b"%x\r\n" % len(part) + part + b"\r\n")
            self.wfile.flush()
            time.sleep(0.5)
        self.wfile.write(b"0\r\n\r\n")


def names(lines):
    return " ".join(json.loads(line)["object"]["metadata"]["name"] for line in lines if line)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Watch)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/api/v1/configmaps?watch=true"

for library in (httpx, httpx2):
    with library.Client(timeout=library.Timeout(1.2), trust_env=False) as client:
        begun = time.monotonic()
        with client.stream("GET", url) as response:
            found = names(response.iter_lines())
        print(f"{library.__name__} stream: {found} after {int(time.monotonic() - begun)} s, no error")
        print(f"{library.__name__} body: {names(client.get(url).text.splitlines())}")
        print(f"{library.__name__} identity: {names(client.get(url, headers={'Accept-Encoding': 'identity'}).text.splitlines())}")

session = requests.Session()
session.trust_env = False
print("requests stream:", names(session.get(url, stream=True).iter_lines()))


async def asynchronous():
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        print("aiohttp stream:", names([line async for line in response.content]))


asyncio.run(asynchronous())
PYTHON
environment/bin/python seen.py >seen

cat >expected <<'END'
httpx stream: i1 i2 after 3 s, no error
httpx body: i1 i2
httpx identity: i1 i2 t1 t2 t3 t4 t5 t6
httpx2 stream: i1 i2 after 3 s, no error
httpx2 body: i1 i2
httpx2 identity: i1 i2 t1 t2 t3 t4 t5 t6
requests stream: i1 i2 t1 t2 t3 t4 t5 t6
aiohttp stream: i1 i2 t1 t2 t3 t4 t5 t6
END
diff expected seen && cat seen
