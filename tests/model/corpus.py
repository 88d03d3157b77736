#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The conformance corpus: small safetensors files, legal, odd and broken, each named after what it tries.

    corpus.py write FOLDER               FOLDER/<case>.safetensors for each case
    corpus.py check PROGRAM              PROGRAM (st_verdict) must judge every case as verdicts.tsv says
    corpus.py check-reference            so must the safetensors package, if it is installed (77: it is not)

verdicts.tsv holds for each case the reference's verdict and error (safetensors 0.8.0, really run) and the
code of heft. The files are made anew for each run: one of them has 100 MB.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
VERDICTS = os.path.join(HERE, "verdicts.tsv")
LIMIT = 100_000_000
U64_MAX = 2**64 - 1
SKIPPED = 77

BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}


def file(header, data=0, length=None):
    """A file: the length field (true unless given), the header's text or bytes, `data` bytes."""
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(n & 255 for n in range(data))


def entry(dtype, shape, begin, end, **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


def table(**tensors):
    return json.dumps(tensors, separators=(",", ":"))


def raw_entry(body, data=1, name='"a"'):
    """A file of one tensor whose entry's text is given as it stands."""
    return file("{" + name + ":" + body + "}", data)


BYTE = '"dtype":"U8","shape":[1],"data_offsets":[0,1]'  # one byte, without its braces
SQUARE = {"a": entry("F32", [2, 2], 0, 16)}
SQUARE_TEXT = table(**SQUARE)


def extra(value):
    """A good tensor with one more field that nobody knows."""
    return raw_entry("{" + BYTE + ',"x":' + value + "}")


def with_metadata(value, tail=""):
    return file('{"__metadata__":' + value + tail + "}")


CASES = {
    # ---- the frame: length field, header, data ----
    "f01_empty_file": b"",
    "f02_seven_bytes": bytes(7),
    "f03_len_only_n0": file(""),
    "f04_n0_with_data": file("", 16),
    "f05_n_past_eof": file("{}", length=3),
    "f06_lfs_pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n",
    "f07_n_100000001": file("{}", length=LIMIT + 1),
    "f08_n_u64max": file("{}", length=U64_MAX),
    "f09_n_2p63": file("{}", length=2**63),
    "f10_empty_dict": file("{}"),
    "f11_empty_dict_with_data": file("{}", 1),
    "f12_header_all_spaces": file(" " * 16),
    "f13_header_exact_100MB": file("{}" + " " * (LIMIT - 2)),
    "f14_header_not_mult_8": file(table(a=entry("U8", [1], 0, 1)), 1),
    # ---- the header as a text ----
    "h01_leading_space": file("  " + SQUARE_TEXT, 16),
    "h02_trailing_space": file(SQUARE_TEXT + " " * 7, 16),
    "h03_all_kinds_of_white_space": file('\r\n\t {\r"a"\n:\t{ "dtype" : "U8" , "shape" : [ 1 ] , "data_offsets" '
                                         ": [ 0 , 1 ] } } \t\r\n", 1),
    "h04_trailing_nul": file(SQUARE_TEXT + "\0", 16),
    "h05_utf8_bom": file(b"\xef\xbb\xbf" + SQUARE_TEXT.encode(), 16),
    "h06_not_utf8": file(b'{"\xff":1}'),
    "h07_truncated_json": file(SQUARE_TEXT[:-1], 16),
    "h08_array_top": file("[]"),
    "h09_form_feed_is_no_white_space": file("{\f}"),
    "h10_two_documents": file("{}{}"),
    "h11_trailing_comma": file(SQUARE_TEXT[:-1] + ",}", 16),
    "h12_comment": file("{/* nothing */}"),
    "h13_single_quotes": file("{'a':1}"),
    "h14_NaN_literal": with_metadata('{"k":NaN}'),
    "h15_raw_control_char_in_name": raw_entry("{" + BYTE + "}", name='"a\nb"'),
    "h16_delete_in_name": raw_entry("{" + BYTE + "}", name='"a\x7fb"'),
    "h17_nul_escape_name": raw_entry("{" + BYTE + "}", name='"a\\u0000b"'),
    "h18_empty_name": file(table(**{"": entry("U8", [1], 0, 1)}), 1),
    "h19_surrogate_pair_name": raw_entry("{" + BYTE + "}", name='"\\ud83d\\ude00"'),
    "h20_deep_nesting_unknown_field": extra("[" * 200 + "]" * 200),
    "h21_dotdot_name": file(table(**{"../../etc/x": entry("U8", [1], 0, 1)}), 1),
    "h22_lone_surrogate_name": raw_entry("{" + BYTE + "}", name='"\\ud83d"'),
    "h23_surrogates_reversed": raw_entry("{" + BYTE + "}", name='"\\ude00\\ud83d"'),
    "h24_unknown_escape": raw_entry("{" + BYTE + "}", name='"\\x41"'),
    "h25_overlong_utf8": file(b'{"\xc0\xaf":1}'),
    "h26_utf8_surrogate": file(b'{"\xed\xa0\x80":1}'),
    "h27_nesting_127": extra("[" * 125 + "]" * 125),
    "h28_nesting_128": extra("[" * 126 + "]" * 126),
    "h29_missing_comma": file('{"a":{' + BYTE + '}"b":{' + BYTE + "}}", 1),
    # ---- what stands twice ----
    "d01_dup_name_same_offsets": file('{"a":{' + BYTE + '},"a":{' + BYTE + "}}", 1),
    "d02_dup_name_second_wins_ok": file('{"a":{"dtype":"U8","shape":[9],"data_offsets":[5,14]},"a":{' + BYTE + "}}", 1),
    "d03_dup_name_leaves_hole": file('{"a":{' + BYTE + '},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', 2),
    "d04_dup_name_first_broken": file('{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,1]},"a":{' + BYTE + "}}", 1),
    "d05_dup_metadata": file('{"__metadata__":{},"__metadata__":{}}'),
    "d06_dup_field_in_tensor": raw_entry('{"dtype":"U8",' + BYTE.replace("U8", "I8") + "}"),
    "d07_dup_unknown_field": raw_entry("{" + BYTE + ',"x":1,"x":2}'),
    "d08_dup_metadata_null": file('{"__metadata__":null,"__metadata__":null}'),
    "d09_dup_metadata_key": with_metadata('{"k":"1","k":"2"}'),
    "d10_dup_name_by_escape": file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"\\u0061":{' + BYTE + "}}", 1),
    # ---- __metadata__ ----
    "m01_metadata_strings": file(table(__metadata__={"format": "pt"}, **SQUARE), 16),
    "m02_metadata_empty": file(table(__metadata__={}, **SQUARE), 16),
    "m03_metadata_null": with_metadata("null"),
    "m04_metadata_int_value": file(table(__metadata__={"k": 1}, **SQUARE), 16),
    "m05_metadata_nested": file(table(__metadata__={"k": {"x": "y"}}, **SQUARE), 16),
    "m06_metadata_array": file(table(__metadata__=[], **SQUARE), 16),
    "m07_metadata_null_value": with_metadata('{"k":null}'),
    "m08_metadata_alone": with_metadata('{"format":"pt"}'),
    "m09_metadata_looks_like_tensor": file(table(__metadata__=entry("U8", [1], 0, 1)), 1),
    "m10_metadata_by_escape": file('{"\\u005f_metadata__":{"k":1}}'),
    "m11_metadata_as_tensor_last": file('{"a":{' + BYTE + '},"__metadata__":{' + BYTE + "}}", 1),
    # ---- an entry's fields ----
    "e01_missing_dtype": raw_entry('{"shape":[1],"data_offsets":[0,1]}'),
    "e02_missing_shape": raw_entry('{"dtype":"U8","data_offsets":[0,1]}'),
    "e03_missing_offsets": raw_entry('{"dtype":"U8","shape":[1]}'),
    "e04_unknown_field": extra("7"),
    "e05_field_by_escape": raw_entry("{" + BYTE.replace("dtype", "d\\u0074ype") + "}"),
    "e06_entry_null": raw_entry("null", 0),
    "e07_entry_number": raw_entry("1", 0),
    "e08_dtype_lowercase": raw_entry("{" + BYTE.replace("U8", "u8") + "}"),
    "e09_dtype_unknown_F128": file(table(a=entry("F128", [1], 0, 16)), 16),
    "e10_dtype_null": raw_entry("{" + BYTE.replace('"U8"', "null") + "}"),
    "e11_dtype_as_map": raw_entry("{" + BYTE.replace('"U8"', '{"U8":null}') + "}"),
    "e12_shape_negative": file(table(a=entry("U8", [-1], 0, 1)), 1),
    "e13_shape_float": raw_entry("{" + BYTE.replace("[1]", "[1.0]") + "}"),
    "e14_shape_negative_zero": raw_entry('{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}', 0),
    "e15_shape_string_number": raw_entry("{" + BYTE.replace("[1]", '["1"]') + "}"),
    "e16_shape_leading_zero": raw_entry("{" + BYTE.replace("[1]", "[01]") + "}"),
    "e17_shape_u64max_times_0": raw_entry('{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]}', 0),
    "e18_shape_2p64": raw_entry("{" + BYTE.replace("[1]", "[18446744073709551616]") + "}"),
    "e19_offsets_one": raw_entry("{" + BYTE.replace("[0,1]", "[0]") + "}"),
    "e20_offsets_three": raw_entry("{" + BYTE.replace("[0,1]", "[0,1,2]") + "}"),
    "e21_offsets_empty": raw_entry("{" + BYTE.replace("[0,1]", "[]") + "}"),
    "e22_offsets_float": raw_entry("{" + BYTE.replace("[0,1]", "[0.0,1.0]") + "}"),
    "e23_shape_exponent": raw_entry("{" + BYTE.replace("[1]", "[1e0]") + "}"),
    "e24_shape_object": raw_entry("{" + BYTE.replace("[1]", '{"0":1}') + "}"),
    "e25_entry_array": raw_entry('["U8",[1],[0,1]]'),
    "e26_entry_array_dtype_map": raw_entry('[{"U8":null},[1],[0,1]]'),
    "e27_entry_array_four": raw_entry('["U8",[1],[0,1],0]'),
    "e28_entry_array_two": raw_entry('["U8",[1]]'),
    "e29_entry_array_empty": raw_entry("[]", 0),
    "e30_dtype_map_of_map": raw_entry("{" + BYTE.replace('"U8"', '{"U8":{}}') + "}"),
    "e31_dtype_map_of_two": raw_entry("{" + BYTE.replace('"U8"', '{"U8":null,"I8":null}') + "}"),
    "e32_dtype_map_empty": raw_entry("{" + BYTE.replace('"U8"', "{}") + "}"),
    "e33_entry_empty": raw_entry("{}", 0),
    "e34_entry_string": raw_entry('"U8"', 0),
    # ---- unknown fields are JSON all the same ----
    "x01_number_1e308": extra("1e308"),
    "x02_number_1e309": extra("1e309"),
    "x03_number_minus_1e309": extra("-1e309"),
    "x04_number_1e-400": extra("1e-400"),
    "x05_number_zero_huge_exponent": extra("0e99999999999"),
    "x06_number_huge_exponent": extra("1e99999999999"),
    "x07_number_past_the_largest_double": extra("1.7976931348623158e308"),
    "x08_number_largest_double": extra("1.7976931348623157e308"),
    "x09_number_309_digits": extra("1" + "0" * 308),
    "x10_number_310_digits": extra("1" + "0" * 309),
    "x11_number_point_alone": extra("1."),
    "x12_number_leading_zero": extra("-01"),
    "x13_number_plus": extra("+1"),
    "x14_number_exponent_alone": extra("1e+"),
    "x15_minus_alone": extra("-"),
    "x16_true_cut": extra("tru"),
    "x17_lone_surrogate": extra('"\\ud800"'),
    "x18_control_character": extra('"\x1f"'),
    "x19_nested_trailing_comma": extra("[1,]"),
    "x20_nested_key_no_string": extra("{1:2}"),
    "x21_nested_metadata": extra('{"__metadata__":3}'),
    "x22_closers_crossed": extra("[{]}"),
    # ---- where the tensors lie ----
    "g01_scalar_rank0": file(table(a=entry("F32", [], 0, 4)), 4),
    "g02_zero_dim": file(table(a=entry("F32", [2, 0, 3], 0, 0))),
    "g03_zero_elem_at_end": file(table(a=entry("U8", [4], 0, 4), z=entry("F32", [0], 4, 4)), 4),
    "g04_zero_elem_listed_after_sibling": file(table(b=entry("F32", [1], 0, 4), z=entry("F32", [0], 0, 0)), 4),
    "g05_zero_elem_between": file(table(a=entry("U8", [2], 0, 2), z=entry("U8", [0], 2, 2), b=entry("U8", [2], 2, 4)), 4),
    "g06_unsorted_listing": file(table(b=entry("U8", [4], 4, 8), a=entry("U8", [4], 0, 4)), 8),
    "g07_hole_at_start": file(table(a=entry("U8", [4], 4, 8)), 8),
    "g08_hole_in_the_middle": file(table(a=entry("U8", [2], 0, 2), b=entry("U8", [2], 4, 6)), 6),
    "g09_hole_at_end": file(table(a=entry("U8", [4], 0, 4)), 8),
    "g10_truncated_one_byte": file(SQUARE_TEXT, 15),
    "g11_overlap_partial": file(table(a=entry("U8", [4], 0, 4), b=entry("U8", [4], 2, 6)), 6),
    "g12_overlap_identical": file(table(a=entry("U8", [4], 0, 4), b=entry("U8", [4], 0, 4)), 4),
    "g13_overlap_inside": file(table(a=entry("U8", [4], 0, 4), b=entry("U8", [1], 1, 2)), 4),
    "g14_begin_gt_end": file(table(a=entry("U8", [4], 4, 0)), 4),
    "g15_size_too_small": file(table(a=entry("F32", [2, 2], 0, 12)), 12),
    "g16_size_too_big": file(table(a=entry("F32", [2], 0, 12)), 12),
    "g17_shape_mul_overflow": file(table(a=entry("U8", [2**33, 2**33], 0, 4)), 4),
    "g18_bits_mul_overflow": file(table(a=entry("U8", [2**61], 0, 4)), 4),
    "g19_zero_first_then_huge": file(table(a=entry("F32", [0, U64_MAX, U64_MAX], 0, 0))),
    "g20_huge_first_then_zero": file(table(a=entry("F32", [U64_MAX, U64_MAX, 0], 0, 0))),
    "g21_offset_u64max": file(table(a=entry("U8", [U64_MAX], 0, U64_MAX)), 4),
    "g22_rank_70000": file(table(a=entry("U8", [1] * 70000, 0, 1)), 1),
    "g23_misaligned_f32_after_u8": file(table(a=entry("U8", [1], 0, 1), b=entry("F32", [1], 1, 5)), 5),
    "g24_zero_elem_reversed": file(table(a=entry("U8", [0], 1, 0)), 1),
    "g25_end_past_eof_by_8": file(table(a=entry("U8", [24], 0, 24)), 16),
    "g26_many_at_the_same_place": file(table(a=entry("U8", [3], 0, 3), **{f"z{n}": entry("U8", [0], 0, 0)
                                                                          for n in range(20)}), 3),
    # ---- dtypes ----
    **{f"t_ok_{name}": file(table(a=entry(name, [4], 0, bits // 2)), bits // 2) for name, bits in BITS.items()},
    "t_bad_F4_odd": file(table(a=entry("F4", [3], 0, 2)), 2),
    "t_bad_F6_odd": file(table(a=entry("F6_E3M2", [3], 0, 2)), 2),
    "t_bool_value_2": file(table(a=entry("BOOL", [1], 0, 1))) + b"\x02",
    "t_bad_F8_plain": file(table(a=entry("F8", [1], 0, 1)), 1),
    "t_bad_FP8_E4M3": file(table(a=entry("F8_E4M3FN", [1], 0, 1)), 1),
    "t_bad_C128": file(table(a=entry("C128", [1], 0, 16)), 16),
    "t_bad_I4": file(table(a=entry("I4", [2], 0, 1)), 1),
}

# The reference's error, as the package words it (in the order of the text's test), and its name.
REFERENCE_ERRORS = [("invalid UTF-8 in header", "InvalidHeader"),
                    ("invalid JSON in header", "InvalidHeaderDeserialization"),
                    ("header too large", "HeaderTooLarge"),
                    ("header too small", "HeaderTooSmall"),
                    ("invalid header length", "InvalidHeaderLength"),
                    ("invalid shape, data type, or offset", "TensorInvalidInfo"),
                    ("invalid offset for tensor", "InvalidOffset"),
                    ("incomplete metadata", "MetadataIncompleteBuffer"),
                    ("overflow computing buffer size", "ValidationOverflow"),
                    ("slicing for subbytes", "MisalignedSlice")]

# Which reference error each code of heft stands for.
CODES = {"HEADER_TOO_SMALL": "HeaderTooSmall", "HEADER_TOO_LARGE": "HeaderTooLarge", "LFS_POINTER": "HeaderTooLarge",
         "HEADER_LENGTH": "InvalidHeaderLength", "HEADER_UTF8": "InvalidHeader",
         "HEADER_JSON": "InvalidHeaderDeserialization", "HEADER_FIELD": "InvalidHeaderDeserialization",
         "DTYPE": "InvalidHeaderDeserialization", "OFFSET_GAP": "InvalidOffset", "OFFSET_OVERLAP": "InvalidOffset",
         "OFFSET_REVERSED": "InvalidOffset", "SIZE_MISMATCH": "TensorInvalidInfo",
         "SHAPE_OVERFLOW": "ValidationOverflow", "MISALIGNED": "MisalignedSlice",
         "DATA_TRUNCATED": "MetadataIncompleteBuffer", "DATA_TRAILING": "MetadataIncompleteBuffer", "-": "-"}


def reference_verdict(deserialize, content):
    """("ACCEPT", "-") or ("REJECT", error) of the package's own function."""
    try:
        deserialize(content)
    except Exception as error:  # its SafetensorError, by whatever module
        for words, name in REFERENCE_ERRORS:
            if words in str(error):
                return "REJECT", name
        raise
    return "ACCEPT", "-"


def write(folder):
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, content in CASES.items():
        paths.append(os.path.join(folder, name + ".safetensors"))
        with open(paths[-1], "wb") as out:
            out.write(content)
    return paths


def recorded():
    with open(VERDICTS, encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines if not line.startswith("#")]
    return {row[0]: tuple(row[1:]) for row in rows[1:]}


def finish(passed, problems):
    for problem in problems:
        print(problem)
    print(f"{passed} passed, {len(problems)} failed")
    return 1 if problems else 0


def check(program):
    wanted, problems = recorded(), []
    with tempfile.TemporaryDirectory(prefix="heft-corpus-") as folder:
        said = subprocess.run([program, *write(folder)], capture_output=True, text=True, check=False)
    got = {}
    for line in said.stdout.splitlines():
        name, verdict, code, sentence = line.split("\t")
        got[name.removesuffix(".safetensors")] = (verdict, code)
        if verdict == "REJECT" and not sentence:
            problems.append(f"{name}: refused without a sentence")
    if said.returncode:
        problems.append(f"{program} ended with {said.returncode}: {said.stderr[-2000:]}")
    for name in sorted(set(wanted) ^ set(CASES)):
        problems.append(f"{name}: only in {'verdicts.tsv' if name in wanted else 'corpus.py'}")
    for name, (verdict, _, code) in wanted.items():
        if got.get(name) != (verdict, code):
            problems.append(f"{name}: wanted {verdict} {code}, got {got.get(name)}")
    return finish(len(CASES), problems)


def check_reference():
    try:
        from safetensors import deserialize
    except ImportError:
        print("the Python package safetensors is not installed (scripts/bootstrap installs it)")
        return SKIPPED
    problems = []
    for name, (verdict, error, code) in recorded().items():
        got = reference_verdict(deserialize, CASES[name])
        if got != (verdict, error):
            problems.append(f"{name}: recorded {verdict} {error}, the package says {got}")
        if CODES[code] != error:
            problems.append(f"{name}: {code} does not stand for {error}")
    return finish(len(CASES), problems)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        print(len(write(sys.argv[2])), "cases")
    elif sys.argv[1] == "check":
        sys.exit(check(sys.argv[2]))
    else:
        sys.exit(check_reference())
