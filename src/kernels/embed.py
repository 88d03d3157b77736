# SPDX-License-Identifier: Apache-2.0
"""Writes a file as a C array: embed.py OUTPUT.c [INPUT]. Without an input the array is empty."""
import sys

data = open(sys.argv[2], "rb").read() if len(sys.argv) > 2 else b""
with open(sys.argv[1], "w") as out:
    out.write("/* Made by src/kernels/embed.py. */\n#include \"kernels/kernels.h\"\n\n")
    out.write("_Alignas(16) const unsigned char heft_kernels_image[] = {\n")
    for at in range(0, len(data), 16):
        out.write("".join("%d," % byte for byte in data[at:at + 16]) + "\n")
    out.write("0};\nconst unsigned long heft_kernels_image_bytes = %d;\n" % len(data))
