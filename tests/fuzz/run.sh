#!/usr/bin/env bash
# Feeds the readers of what others send with inputs that clang's libFuzzer makes, under the address and
# undefined-behaviour sanitizers: tests/fuzz/run.sh parsers|greetings|calls [options of libFuzzer]
# Needs clang with its runtime (Debian: clang-16 libclang-rt-16-dev). An input that fails is left in
# build/fuzz and replayed by its name as an option.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${1:?parsers, greetings or calls}
shift
clang=${CXX:-$(command -v clang++-16 || command -v clang++ || true)}
[[ -n $clang ]] || { echo "run.sh: there is no clang++: apt-get install clang-16 libclang-rt-16-dev" >&2; exit 1; }

sources=(lockstep/agent/{agent_messages,etcd_messages,job_secret,json_members,state_text}.cpp
  lockstep/launch/rendezvous_state.cpp lockstep/base/error.cpp)
if [[ $target == greetings ]]; then
  sources+=(lockstep/agent/{control_server,event_loop,sealed_connection}.cpp
    lockstep/launch/{agent_view,console,rendezvous_service}.cpp
    lockstep/os/{tcp_socket,write_all}.cpp)
fi
flags=(-lsodium)
if [[ $target == calls ]]; then  # Those of workers read LibTorch's values.
  sources=(lockstep/rpc/{call_message,element_type,gradient_message,local_frame,value_codec}.cpp lockstep/base/error.cpp)
  torch=$(echo .venv/lib/python3*/site-packages/torch)
  flags=(-fno-sanitize=vptr  # Needs one of c10's types that LibTorch does not export.
    -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include"
    -L"$torch/lib" -Wl,-rpath,"$PWD/$torch/lib" -ltorch -ltorch_cpu -lc10)
fi
mkdir -p "build/fuzz/$target"
"$clang" -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
  -DBOOST_ASIO_DISABLE_THREADS -DBOOST_ERROR_CODE_HEADER_ONLY -I. \
  "tests/fuzz/$target.cpp" "${sources[@]}" "${flags[@]}" -o "build/fuzz/fuzz_$target"
exec "build/fuzz/fuzz_$target" -artifact_prefix=build/fuzz/ -dict="tests/fuzz/$target.dict" "$@" \
  "build/fuzz/$target" "tests/fuzz/seeds_$target"
