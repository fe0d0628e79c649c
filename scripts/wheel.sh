#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/wheel.sh [FOLDER]

Builds the wheel of the Python package, in build/wheel/dist, from the library that was built in FOLDER (default:
build/release, which is built first). Unlike that of `pip install ./python`, it needs nothing but the C and C++ runtimes
and zlib: libzip is linked into it, built without cryptography from Debian's source package.

Exit code 0: built, and what it needs is what is said above. 1: a step failed. 2: bad usage, or a package is missing.
TEXT
}

case ${1-} in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; fail "unknown argument '$1'" ;;
esac
folder=${1-}
wheel=$PWD/build/wheel

# libzip, static and without cryptography, in build/wheel/libzip. Debian's own needs OpenSSL.
build_libzip() {
  local source=$wheel/source site
  [[ ! -e $wheel/libzip/lib/libzip.a ]] || return 0
  heading "libzip without cryptography"
  # shellcheck disable=SC2016  # a field of apt-get
  site=$(apt-get indextargets --format '$(SITE)' 'Release: bookworm' | head -n 1)
  site=${site:-http://deb.debian.org/debian}  # apt names no mirror before its first update
  rm -rf "$source"
  mkdir -p "$source/lists/partial"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site bookworm main" >"$source/sources.list"
  local apt=(apt-get -qq -o Dir::Etc::SourceList="$source/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$source/lists" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$source" && "${apt[@]}" source libzip >/dev/null)
  # arc4random would need a newer C library; it is for encryption only.
  cmake -G Ninja -S "$source"/libzip-*/ -B "$source/build" -Wno-dev -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DENABLE_{OPENSSL,GNUTLS,MBEDTLS,COMMONCRYPTO,WINDOWS_CRYPTO,BZIP2,LZMA}=OFF \
    -DBUILD_{TOOLS,REGRESS,EXAMPLES,DOC}=OFF -DHAVE_ARC4RANDOM=OFF -DCMAKE_INSTALL_PREFIX="$wheel/libzip" \
    -DCMAKE_INSTALL_LIBDIR=lib >/dev/null
  cmake --build "$source/build" >/dev/null
  cmake --install "$source/build" >/dev/null
}

# check_needs FILE: the shared libraries that it needs, none of which may be more than the runtimes and zlib.
check_needs() {
  local needed
  needed=$(objdump -p "$1" | sed -n 's/^ *NEEDED *//p' | tr '\n' ' ')
  echo "needs $needed"
  local name
  for name in $needed; do
    case $name in
      libstdc++.so.6 | libgcc_s.so.1 | libm.so.6 | libc.so.6 | libz.so.1 | ld-linux-*) ;;
      *) fail "the extension module needs $name, which the wheel does not carry" ;;
    esac
  done
}

need_packages "${BUILD_PACKAGES[@]}" "${WHEEL_PACKAGES[@]}"
if [[ -z $folder ]]; then
  folder=build/release
  build_release isobit isobit_c isobit_cli  # all that is installed
fi
[[ -f $folder/CMakeCache.txt ]] || fail "no library was built in '$folder'; leave the argument out to build one"
build_libzip
heading "the wheel"
[[ -x $wheel/venv/bin/pip ]] || python3 -m venv "$wheel/venv"
rm -rf "$wheel/dist" "$wheel/prefix" "$wheel/content"
cmake --install "$folder" --prefix "$wheel/prefix" >/dev/null
config=$(find "$wheel/prefix" -name isobit-config.cmake)
"$wheel/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$wheel/dist" ./python \
  --config-settings "cmake.define.isobit_DIR=${config%/*}" \
  --config-settings "cmake.define.libzip_DIR=$wheel/libzip/lib/cmake/libzip"
python3 -m zipfile -e "$wheel"/dist/isobit-*.whl "$wheel/content"
check_needs "$wheel"/content/isobit/_isobit.abi3.so
ls -l "$wheel/dist"
