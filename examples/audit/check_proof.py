#!/usr/bin/env python3
"""Checks a proof of `promptgate audit prove` with nothing but the public key of the gateway.

usage: check_proof.py PUBLIC_KEY < proof.json      (needs openssl 3)
"""
import base64, hashlib, json, subprocess, sys, tempfile

proof = json.load(sys.stdin)
digest = bytes.fromhex(proof["before"])
checkpoint = json.loads(proof["checkpoint"])
if checkpoint["instance"] != proof["instance"]:
    sys.exit("WRONG: the checkpoint belongs to another log")

# The running digest up to the record that the checkpoint signs.
last = None
for line in proof["lines"]:
    record = json.loads(line)
    if last is not None and record["seq"] <= last:
        sys.exit(f"WRONG: record {record['seq']} is out of order")
    digest = hashlib.sha256(digest + line.encode() + b"\n").digest()
    last = record["seq"]
if last != checkpoint["count"] or digest.hex() != checkpoint["lines"]:
    sys.exit("WRONG: a line is not the one that the checkpoint has signed")

statement = "\n".join(["promptgate audit checkpoint v2", proof["instance"],
                       str(checkpoint["count"]), checkpoint["head"], checkpoint["lines"],
                       str(checkpoint["segment"]), checkpoint["headers"]])
with tempfile.TemporaryDirectory() as folder:
    def file(name, content):
        with open(f"{folder}/{name}", "wb") as out:
            out.write(content)
        return f"{folder}/{name}"
    # An Ed25519 public key in DER (RFC 8410) is this prefix and the 32 bytes.
    key = file("key", bytes.fromhex("302a300506032b6570032100") + base64.b64decode(sys.argv[1]))
    verified = subprocess.run(["openssl", "pkeyutl", "-verify", "-pubin", "-keyform", "DER",
                               "-inkey", key, "-rawin", "-in", file("text", statement.encode()),
                               "-sigfile", file("sig", base64.b64decode(checkpoint["signature"]))],
                              capture_output=True)
if verified.returncode:
    sys.exit("WRONG: the checkpoint is not signed with this key")
print(f"signed: {proof['lines'][0]}")
