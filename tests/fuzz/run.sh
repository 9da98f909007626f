#!/usr/bin/env bash
# Feeds the readers of what others send with inputs that clang's libFuzzer makes, under the address and
# undefined-behaviour sanitizers: tests/fuzz/run.sh parsers|greetings|calls|snapshots [options of libFuzzer]
# An input has at most 64 KiB; one that makes its reader take 64 MiB at once, or the program more than most_mb, fails: what
# is read takes memory in proportion to its bytes.
# Needs clang with its runtime (Debian: clang-16 libclang-rt-16-dev). An input that fails is left in
# build/fuzz and replayed by its name as an option.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${1:?parsers, greetings, calls or snapshots}
shift
clang=${CXX:-$(command -v clang++-16 || command -v clang++ || true)}
[[ -n $clang ]] || { echo "run.sh: there is no clang++: apt-get install clang-16 libclang-rt-16-dev" >&2; exit 1; }

sources=(launcher/agents/{agent_messages,etcd_messages,job_secret,json_members}.cpp
  launcher/rendezvous/rendezvous_state.cpp lockstep/base/error.cpp)
if [[ $target == greetings ]]; then
  sources+=(launcher/agents/{control_server,event_loop,sealed_connection}.cpp launcher/job/console.cpp
    launcher/rendezvous/rendezvous_service.cpp
    lockstep/os/socket/tcp_socket.cpp lockstep/os/files/pipe.cpp)
fi
flags=(-lsodium)
most_mb=256
if [[ $target == calls || $target == snapshots ]]; then  # They make LibTorch's values.
  most_mb=400
  sources=(lockstep/rpc/internal/{call_message,element_type,gradient_message,local_frame,value_codec}.cpp lockstep/base/error.cpp)
  if [[ $target == snapshots ]]; then
    sources=(lockstep/snapshot/pickle/{pickle_nodes,pickle_writer,storage_types,unpickler,zip_reader}.cpp
      lockstep/snapshot/checkpoint/{distributed_metadata,safetensors_index,tensor_box,write_distributed_metadata}.cpp
      lockstep/snapshot/internal/{checksum,safetensors_header}.cpp lockstep/snapshot/sharded/snapshot_manifest.cpp
      lockstep/os/files/{atomic_file,readable_file}.cpp lockstep/base/{error,internal/random_id}.cpp)
  fi
  torch=$(echo .venv/lib/python3*/site-packages/torch)
  flags=(-DXXH_INLINE_ALL -DLOCKSTEP_VERSION='"fuzz"'
    -fno-sanitize=vptr  # Needs one of c10's types that LibTorch does not export.
    -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include"
    -L"$torch/lib" -Wl,-rpath,"$PWD/$torch/lib" -ltorch -ltorch_cpu -lc10 -lz)
fi
mkdir -p "build/fuzz/$target"
"$clang" -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
  -DBOOST_ASIO_DISABLE_THREADS -DBOOST_ERROR_CODE_HEADER_ONLY -I. \
  "tests/fuzz/$target.cpp" "${sources[@]}" "${flags[@]}" -o "build/fuzz/fuzz_$target"
# Freed memory that the sanitizer holds back counts as well.
export ASAN_OPTIONS=quarantine_size_mb=16:${ASAN_OPTIONS:-}
exec "build/fuzz/fuzz_$target" -artifact_prefix=build/fuzz/ -dict="tests/fuzz/$target.dict" \
  -max_len=65536 -malloc_limit_mb=64 -rss_limit_mb="$most_mb" "$@" "build/fuzz/$target" "tests/fuzz/seeds_$target"
