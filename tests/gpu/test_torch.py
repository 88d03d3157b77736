#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside a process of PyTorch, through libheft.so by ctypes: its tensors are registered and copied by heft while a
matrix loop runs, and neither the results nor the current device change. Digests against hashlib."""
import ctypes
import hashlib
import os
import sys

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(77)


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 512)]


class RegionOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("space", ctypes.c_int), ("flags", ctypes.c_uint32), ("memory", ctypes.c_void_p),
                ("address", ctypes.c_void_p), ("length_bytes", ctypes.c_uint64), ("fd", ctypes.c_int),
                ("path", ctypes.c_char_p)]


class Run(ctypes.Structure):
    _fields_ = [("local_region", ctypes.c_void_p)] + [(n, ctypes.c_uint64) for n in (
        "local_offset", "remote_region", "remote_offset", "length", "count", "local_stride", "remote_stride")]


class ArenaInfo(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("address", "reserved", "committed", "used", "whole", "page")] + [
        ("device", ctypes.c_int)]


class XferOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("deadline_ms", ctypes.c_uint64), ("stall_ms", ctypes.c_uint64),
                ("require", ctypes.c_char_p), ("flags", ctypes.c_uint32), ("on_done", ctypes.c_void_p),
                ("context", ctypes.c_void_p), ("notification", ctypes.c_void_p), ("notification_bytes", ctypes.c_size_t),
                ("counter", ctypes.c_uint32), ("after_event", ctypes.c_void_p), ("after_stream", ctypes.c_void_p)]


AFTER_STREAM = 8


class Result(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("status", ctypes.c_int), ("bytes", ctypes.c_uint64),
                ("start_ns", ctypes.c_uint64), ("end_ns", ctypes.c_uint64), ("transport", ctypes.c_char_p),
                ("failed_run", ctypes.c_int64), ("error", Error)]


LIBRARY = os.path.join(os.environ["HEFT_BUILD"], "src", "libheft.so.0")
heft = ctypes.CDLL(LIBRARY)
heft.heft_torch_arena.restype = ctypes.c_void_p
heft.heft_device_arena_get_info.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
heft.heft_region_id.restype = ctypes.c_uint64
heft.heft_region_id.argtypes = [ctypes.c_void_p]
for name in ("heft_xfer_post", "heft_xfer_release", "heft_region_deregister", "heft_agent_close"):
    getattr(heft, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p][:2 if name != "heft_xfer_release" else 1]
heft.heft_xfer_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
error = Error()


def ok(rc):
    assert rc == 0, (rc, error.text.decode())


def register(agent, tensor):
    return register_range(agent, tensor.data_ptr(), tensor.numel() * tensor.element_size())


def register_range(agent, address, length):
    region = ctypes.c_void_p()
    options = RegionOptions(ctypes.sizeof(RegionOptions), 2, 1, None, address, length, -1, None)
    ok(heft.heft_region_register(agent, ctypes.byref(options), ctypes.byref(region), ctypes.byref(error)))
    return region


def copy(agent, to, source, length, to_offset=0, source_offset=0, stream=None):
    """stream: torch's, which still computes what is copied."""
    options = XferOptions(ctypes.sizeof(XferOptions))
    if stream is not None:
        options.flags, options.after_stream = AFTER_STREAM, stream.cuda_stream
    run, xfer = Run(to.value, to_offset, heft.heft_region_id(source), source_offset, length, 1, 0, 0), ctypes.c_void_p()
    ok(heft.heft_xfer_create(agent, 1, None, ctypes.byref(run), ctypes.c_size_t(1), ctypes.byref(options),
                             ctypes.byref(xfer), ctypes.byref(error)))
    ok(heft.heft_xfer_post(xfer, ctypes.byref(error)))
    rc = heft.heft_xfer_wait(xfer, 60000)
    if rc:
        result = Result(ctypes.sizeof(Result))
        heft.heft_xfer_get_result(xfer, ctypes.byref(result))
        raise AssertionError((rc, result.error.text.decode()))
    ok(heft.heft_xfer_release(xfer))


def tensors_in_one_region():
    """By the pluggable allocator: two tensors of one region, copied behind the matrix loop that makes the first."""
    if not hasattr(torch.cuda, "MemPool"):
        print("skip  torch: it is older than memory pools of other allocators")
        return
    torch.cuda.set_device(0)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "heft_torch_alloc", "heft_torch_free")
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        made = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)
        target = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)
    info = ArenaInfo()
    heft.heft_device_arena_get_info(heft.heft_torch_arena(0), ctypes.byref(info))
    for tensor in (made, target):
        assert info.address <= tensor.data_ptr() < info.address + info.whole, "a tensor outside the arena"
    agent, size = ctypes.c_void_p(), made.numel() * 2
    ok(heft.heft_agent_open(None, ctypes.byref(agent), ctypes.byref(error)))
    region = register_range(agent, info.address, info.whole)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 128
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made.zero_()
            made.add_(a)
            for _ in range(100):
                torch.mm(made.clone(), a, out=made)
            wanted = made.clone()
        copy(agent, region, region, size, target.data_ptr() - info.address, made.data_ptr() - info.address, stream)
        torch.cuda.synchronize()
        assert torch.equal(target, wanted), "the transfer did not wait for the stream"
    ok(heft.heft_region_deregister(region, ctypes.byref(error)))
    ok(heft.heft_agent_close(agent, ctypes.byref(error)))
    print(f"ok    torch {torch.__version__}, tensors in heft's arena: {info.whole >> 20} MiB in one region, after streams")


def main():
    count = torch.cuda.device_count()
    last = count - 1
    torch.cuda.set_device(last)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    wanted = a @ a
    source = torch.randint(0, 256, (64 << 20,), dtype=torch.uint8, device="cuda:0")
    target = torch.zeros(64 << 20, dtype=torch.uint8, device=f"cuda:{last}")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(last)
    agent = ctypes.c_void_p()
    ok(heft.heft_agent_open(None, ctypes.byref(agent), ctypes.byref(error)))
    regions = [register(agent, source), register(agent, target)]
    stream = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            result = a @ a
        copy(agent, regions[1], regions[0], 64 << 20)
        assert torch.cuda.current_device() == last
    torch.cuda.synchronize()
    assert torch.equal(result, wanted), "the matrix product changed"
    left = hashlib.sha256(source.cpu().numpy().tobytes()).hexdigest()
    assert left == hashlib.sha256(target.cpu().numpy().tobytes()).hexdigest(), "wrong bytes"
    for region in regions:
        ok(heft.heft_region_deregister(region, ctypes.byref(error)))
    ok(heft.heft_agent_close(agent, ctypes.byref(error)))
    assert torch.equal(a @ a, wanted)
    again = torch.randn(1 << 20, device="cuda").sum().item()  # its allocator and context live on
    print(f"ok    torch {torch.__version__}, cuda:0 to cuda:{last}, allocator {os.environ.get('PYTORCH_CUDA_ALLOC_CONF', 'default')}"
          f", sum {again:.1f}")


main()
tensors_in_one_region()
sys.exit(0)
