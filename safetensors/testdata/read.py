"""Reads a safetensors file and says what is in it, for the tests: the reader, the metadata, and of each tensor its
name, type, shape and the SHA-256 of its bytes, as JSON.

The reader is that of the Python package safetensors where it is there. Otherwise it is the one below, which follows
the format's description (https://huggingface.co/docs/safetensors) and shares nothing with the Go package.
"""

import hashlib
import json
import struct
import sys

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def unique(pairs):
    assert len(dict(pairs)) == len(pairs), "a key is there twice"
    return dict(pairs)


def by_the_description(content):
    (length,) = struct.unpack("<Q", content[:8])
    assert length <= 100_000_000 and 8 + length <= len(content), "the header's length"
    header = content[8:8 + length]
    assert header[:1] == b"{", "the header begins with {"
    entries = json.loads(header.decode(), object_pairs_hook=unique)
    metadata = entries.pop("__metadata__", {})
    assert all(type(k) is str and type(v) is str for k, v in metadata.items()), "metadata are text to text"
    tensors, end = [], 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        assert sorted(entry) == ["data_offsets", "dtype", "shape"], name
        begin, stop = entry["data_offsets"]
        count = 1
        for n in entry["shape"]:
            count *= n
        assert begin == end and stop - begin == count * SIZES[entry["dtype"]], name  # no holes, no overlap
        assert (8 + length + begin) % SIZES[entry["dtype"]] == 0, name + " is not aligned"
        end = stop
        tensors.append((name, entry["dtype"], entry["shape"], content[8 + length + begin:8 + length + stop]))
    assert 8 + length + end == len(content), "the tensors fill the file"
    return metadata, tensors


def by_the_library(content):
    metadata = by_the_description(content)[0]  # deserialize does not return them
    return metadata, [(name, t["dtype"], t["shape"], bytes(t["data"])) for name, t in deserialize(content)]


try:
    from safetensors import deserialize
    reader, read = "the library", by_the_library
except ImportError:
    reader, read = "the description", by_the_description
with open(sys.argv[1], "rb") as file:
    metadata, tensors = read(file.read())
print(json.dumps({"reader": reader, "metadata": metadata, "tensors": [
    {"name": n, "dtype": d, "shape": list(s), "sha256": hashlib.sha256(b).hexdigest()} for n, d, s, b in sorted(tensors)]}))
