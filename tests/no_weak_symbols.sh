#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# no_weak_symbols.sh NM OBJECT...: fails, and names them, when an object defines weak symbols. No code are DW.ref.*,
# pointers of unoptimised exception tables, and typeinfo, with which clang's sanitizer marks functions.
nm=$1
shift
[ $# -gt 0 ] || { echo "no object given" >&2; exit 2; }
symbols=$("$nm" -A -C "$@") || exit 2
found=$(printf '%s\n' "$symbols" | grep -E ' [WVu] ' | grep -v -E ' V (DW\.ref\.|typeinfo )')
[ -z "$found" ] || { echo "weak symbols in code compiled for an instruction set:"; echo "$found"; exit 1; }
