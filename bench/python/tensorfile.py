"""Reads safetensors files: an 8-byte little-endian header length, a JSON header, raw little-endian data."""

import json
import struct

import torch

DTYPES = {'F32': torch.float32, 'I64': torch.int64}


def read(path):
    """Returns name -> tensor."""
    with open(path, 'rb') as file:
        data = bytearray(file.read())
    begin = 8 + struct.unpack_from('<Q', data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == '__metadata__':
            continue
        dtype, (first, last) = DTYPES[entry['dtype']], entry['data_offsets']
        raw = torch.frombuffer(data[begin + first:begin + last], dtype=torch.uint8)
        tensors[name] = raw.view(dtype).reshape(entry['shape'])
    return tensors
