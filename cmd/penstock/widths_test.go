package main

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock.example/torch"
)

// fits80 fails for each line that is wider than a terminal of 80 columns.
func fits80(t *testing.T, what, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, torch.Library(), "") // a path is as long as it is
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > usualWidth {
			t.Errorf("%s: %d characters: %s", what, n, line)
		}
	}
}

// TestTablesFit: so do tables and grids, also where standard output is no terminal.
func TestTablesFit(t *testing.T) {
	for _, line := range []string{
		"models", "models gpt", "models unet", "models resnet20", "models gpt2-xl", "models inception_v3", "models amoebanetd", "models resnet1001",
		"schedule 1f1b --stages 4 --chunks 8", "schedule interleaved --stages 4 --chunks 8 --virtual 2", "schedule zb-v --stages 3 --chunks 20",
		"schedule compare --stages 4 --chunks 8", "schedule compare --stages 4 --chunks 8 --replicas 2 --latency 1ms", "version",
	} {
		r := command(t, strings.Fields(line)...)
		if r.code != exitDone {
			t.Errorf("%s: %+v", line, r)
		}
		fits80(t, line, r.stdout)
	}
	chain, out := chainFile(t), filepath.Join(t.TempDir(), "out")
	for _, line := range []string{
		"train --model mlp --set width=8 --data synthetic --stages 2 --steps 1 --batch 8 --out OUT", "checkpoint inspect OUT", "checkpoint verify OUT", "eval OUT",
		"profile --model vgg11 --set width=16 --size 32 --batch 1 --repeats 1", "balance --model resnet20 --batch 2 --stages 2", "balance --model gpt --stages 4 --by size",
		"remat solve CHAIN --limit 30MiB", "remat explain CHAIN --limit 30MiB", "remat compare CHAIN", "plan CHAIN --stages 2 --chunks 4", "plan explain CHAIN --stages 2 --chunks 4",
		"schedule compare --profile CHAIN --stages 2 --chunks 4",
	} {
		r := command(t, strings.Fields(strings.NewReplacer("OUT", out, "CHAIN", chain).Replace(line))...)
		if r.code != exitDone {
			t.Errorf("%s: %+v", line, r)
		}
		fits80(t, line, strings.ReplaceAll(strings.ReplaceAll(r.stdout, out, "OUT"), chain, "CHAIN"))
	}
}
