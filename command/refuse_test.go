package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
)

// TestRefuses: bad input is refused with one line that names it and says what to give instead,
// before anything is computed or written.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	mustWrite(t, file, "short")
	mustWrite(t, filepath.Join(dir, "train-images-idx3-ubyte"), "not an idx file")
	programs := t.TempDir()
	broken, other := filepath.Join(programs, "broken"), filepath.Join(programs, "other")
	for path, text := range map[string]string{
		broken: "program whole stages=1 micro-batches=2\nworker 0: 0F0 0B0 0F1\n",
		other:  "program whole stages=1 micro-batches=4\nworker 0: 0F0 0B0 0F1 0B1 0F2 0B2 0F3 0B3\n",
	} {
		mustWrite(t, path, text)
	}
	split := t.TempDir() // pictures in parts to train and to test with
	for _, class := range []string{"train/a", "train/b", "val/a", "val/b"} {
		noerr.Do(t, errors.Join(os.MkdirAll(filepath.Join(split, class), 0o777),
			os.WriteFile(filepath.Join(split, class, "1.png"), nil, 0o666)))
	}
	train := func(args ...string) []string { return with(with(small, "--steps", "2"), args...) }
	tests := []struct {
		args []string
		code int
		want []string // parts of the line
	}{
		{[]string{"train"}, exitUsage, []string{"--model", "penstock models lists"}},
		{[]string{"train", "--model", strings.Repeat("x", 9999), "--data", "synthetic"}, exitUsage,
			[]string{"xx…"}},
		{[]string{"train", "--model", "mlp"}, exitUsage, []string{"--data", "fashion-mnist"}},
		{train("--model", "gpt", "--data", "cifar10", "--data-dir", dir), exitUsage,
			[]string{"gpt", "cifar10"}},
		{train("--schedule", "cosine"), exitUsage,
			[]string{`--schedule "cosine": no schedule "cosine"; want one of gpipe, 1f1b`, "--lr-schedule"}},
		{train("--schedule", file), exitUsage, []string{"--schedule " + file, "line 1, field 1"}},
		{train("--schedule", programs), exitUsage,
			[]string{"--schedule " + programs + ": ", "not a regular file but a directory"}},
		{train("--schedule", broken), exitUsage,
			[]string{"--schedule " + broken, "missing: 0B1 is on no worker", "penstock schedule check"}},
		{train("--schedule", other, "--stages", "2"), exitUsage,
			[]string{"--schedule " + other + ": the program is for 1 stages on 1 devices; want"}},
		{train("--schedule", other, "--chunks", "8"), exitUsage,
			[]string{"--schedule " + other + ": a given program: it is whole, for 1 stages and 4 " +
				"micro-batches; want a whole one for 1 and 8 or more"}},
		{train("--schedule", "interleaved", "--balance", "2,2,2"), exitUsage,
			[]string{"--balance 2,2,2: it has 3 stages; want 2 on each device"}},
		{train("--schedule", "dualpipe-v", "--stages", "3", "--balance", "2,2,2,2"), exitUsage,
			[]string{"--balance 2,2,2,2: it has 4 stages; want 2 on each device, and --stages left out"}},
		{train("--schedule", "dualpipe-v", "--stages", "999"), exitUsage,
			[]string{"--stages: 1998 are more than the 6 layers of mlp"}},
		{train("--schedule", "dualpipe-v", "--stages", "6", "--virtual", "3"), exitUsage,
			[]string{"--virtual 3: dualpipe-v: 3 stages on each device, want 2"}},
		{train("--schedule", "interleaved", "--stages", "2", "--virtual", "2", "--devices",
			"cpu:0,cpu:1,cpu:1,cpu:0"), exitUsage,
			[]string{"--schedule interleaved: stages are on the workers [0 1 1 0]",
				"other stages, devices or chunks"}},
		{train("--checkpoint", "allways"), exitUsage,
			[]string{"--checkpoint allways", "did you mean always? want never"}},
		{train("--data-set", "size=3,size=4"), exitUsage, []string{"--data-set size=4: size is given twice"}},
		{train("--stages", "2", "--checkpoint", "never,always,never"), exitUsage,
			[]string{"never,always,never", "3 policies for 2 stages"}},
		{train("--set", "depht=2"), exitUsage, []string{"--set", "depht=2", "depth="}},
		{train("--set", "classes=7"), exitUsage, []string{"--set classes=7", "synthetic", "10"}},

		{train("--balance", "3,4"), exitUsage, []string{"3,4", "the 6 layers in all"}},
		{train("--balance", "6,0"), exitUsage, []string{"6,0", "at least 1"}},
		{train("--balance", "99999999999999999999,1"), exitUsage,
			[]string{`"99999999999999999999", element 0: want whole numbers, such as 5,6`}},
		{train("--stages", "7"), exitUsage, []string{"--stages: 7 are more than the 6 layers"}},
		{train("--stages", "2", "--devices", "cpu:0"), exitUsage, []string{"cpu:0", "1 for 2 stages"}},
		{train("--devices", "cpu:99999"), exitUsage, []string{"cpu:99999"}},

		{train("--chunks", "0"), exitUsage, []string{"--chunks 0", "from 1 to 2147483647"}},
		{train("--threads", "257"), exitUsage, []string{"--threads 257", "from 1 to 256"}},
		{train("--lr-schedule", "cosine", "--warmup", "2"), exitUsage,
			[]string{"--schedule-steps: want more steps than the warm-up"}},
		{train("--schedule-steps", "9"), exitUsage, []string{"--schedule-steps 9 has no effect without"}},
		{train("--lr-schedule", "plateau"), exitUsage,
			[]string{"--lr-schedule plateau has no effect without --validate"}},
		{train("--lr-schedule", "cosine:size=3"), exitUsage,
			[]string{`--lr-schedule cosine:size=3: size=3: want one of its options; cosine has min=0`}},
		{train("--lr-schedule", "one-cycle", "--warmup", "1"), exitUsage,
			[]string{"--warmup 1: ", "one-cycle"}},
		{train("--betas", "0.9"), exitUsage, []string{"--betas 0.9: want two numbers"}},
		{train("--betas", "0.9,0.99"), exitUsage, []string{"--betas 0.9,0.99: sgd has no such setting"}},
		{train("--optimizer", "adam", "--betas", "0.9,1"), exitUsage,
			[]string{"--betas 0.9,1: want a number from 0"}},
		{train("--lr", "0"), exitUsage, []string{"--lr 0"}},
		{train("--optimizer", "adam", "--momentum", "0.9"), exitUsage, []string{"adam", "0.9"}},
		{train("--momentum", "0", "--nesterov"), exitUsage, []string{"--nesterov", "Momentum above 0"}},

		{train("--memory-limit", "lots"), exitUsage, []string{`"lots"`, "512MiB"}},
		{train("--memory-limit", "100KiB"), exitUsage,
			[]string{"stage 0 on cpu:0 needs ", " and may have 102400", "use more than --memory-limit "}},
		{train("--memory-limit", "100KiB", "--stages", "2"), exitUsage,
			[]string{"cpu:0", "limit 102400", "use more --chunks", "--memory-limit"}},
		{train("--memory-limit", "3MiB", "--chunks", "1"), exitFailed,
			[]string{"step 1: updating", "limit 3145728", "aten::", "or a larger --memory-limit"}},
		{train("--memory-limit", "1500KiB", "--chunks", "1"), exitFailed,
			[]string{"step 1: pipe: stage 0, micro-batch 0", "cpu:0",
				"use more --chunks, more --stages, --checkpoint always, a smaller --batch, or a larger " +
					"--memory-limit"}},

		{train("--data", "mnist"), exitUsage,
			[]string{"--data-dir PATH is needed: mnist: it has no usual place: name "}},
		{train("--data", "fashion-mnist", "--data-dir", ""), exitUsage,
			[]string{`--data-dir ""`, "want a path"}},
		{train("--data", "mnist", "--data-dir", dir), exitUsage, []string{"-ubyte"}},
		{[]string{"train", "--model", "gpt", "--data", "text", "--data-dir", file}, exitUsage,
			[]string{"5 bytes", "129"}},

		{[]string{"train", "--out", dir, "--resume"}, exitUsage,
			[]string{"has no config.toml of a run to go on from"}},
		{train("--resume"), exitUsage, []string{"penstock: --resume has no effect without --out DIR"}},
		{train("--test-every", "1"), exitUsage, []string{"--test-every 1 has no effect without --out"}},
		{train("--changed-data"), exitUsage, []string{"--changed-data has no effect without --resume"}},
		{train("--rank", "0"), exitUsage, []string{"--rank 0 has no effect without --processes"}},
		{train("--rendezvous", "localhost:29500"), exitUsage,
			[]string{"--rendezvous localhost:29500 has no effect without several processes"}},
		{train("--replicas", "2", "--join-timeout", "9s"), exitUsage,
			[]string{"--join-timeout 9s has no effect"}},
		{train("--silence", "9s"), exitUsage, []string{"--silence 9s has no effect"}},
		{train("--window", "64"), exitUsage,
			[]string{"--window 64 has no effect without --data text, tokens or jsonl"}},
		{train("--data-dir", dir), exitUsage,
			[]string{" has no effect without --data that is read from files"}},
		{train("--tf32"), exitUsage, []string{"--tf32 has no effect without a GPU among --devices"}},
		{train("--deterministic=false"), exitUsage, []string{"--deterministic false has no effect"}},
		{train("--plan", "auto", "--threads", "all"), exitUsage,
			[]string{`--threads all: --plan auto decides it`}},
		{train("--resume", "--out", filepath.Join(dir, "nothing")), exitUsage,
			[]string{"no checkpoint", "nothing", "--resume"}},
		{train("--out", file), exitUsage, []string{file, "not a directory"}},
		{train("--out", "/proc/penstock"), exitUsage, []string{"/proc/penstock"}},
		{train("--trace", dir), exitUsage, []string{"cannot be written: not a regular file but a directory"}},
		{train("--trace", filepath.Join(dir, "nowhere", "t.json")), exitUsage,
			[]string{"--trace", "there is no folder", "nowhere"}},

		{train("--model", "resnet21"), exitUsage,
			[]string{`penstock: --model "resnet21": did you mean resnet20? want one of mlp`}},
		{[]string{"models", "vit_b_16", "--set", "heads=5"}, exitUsage,
			[]string{"--set heads=5: vit_b_16: Width is 768; want a multiple of the 5"}},
		{train("--model", "inception_v3"), exitUsage,
			[]string{"--model inception_v3 with --data synthetic: inception_v3: Size is 28; want at " +
				"least 75"}},
		{train("--data", "images", "--data-dir", split, "--data-set", "holdout=0.3"), exitUsage,
			[]string{"images: Holdout is 0.3: there is a part to test with; want it left out"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args[1:], " "), func(t *testing.T) {
			r := command(t, tt.args...)
			line := strings.TrimSuffix(r.stderr, "\n")
			if r.code != tt.code || r.stdout != "" || !strings.HasPrefix(line, "penstock: ") ||
				strings.Contains(line, "\n") {
				t.Errorf("exit code %d, want %d; stdout %q, stderr:\n%s", r.code, tt.code, r.stdout, r.stderr)
			}
			for _, part := range tt.want {
				if !strings.Contains(line, part) {
					t.Errorf("no %q in: %s", part, line)
				}
			}
			if strings.Count(line, "; use ") > 1 {
				t.Errorf("two remedies: %s", line)
			}
		})
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("something was written: %v, %v", entries, err)
	}
}

// TestExitCodes: scripts rely on the numbers.
func TestExitCodes(t *testing.T) {
	for code, args := range map[int][]string{0: {"models"},
		1: with(small, "--memory-limit", "3MiB", "--chunks", "1"), 64: with(small, "--stages", "0")} {
		if r := command(t, args...); r.code != code {
			t.Errorf("%q: exit code %d, want %d", args, r.code, code)
		}
	}
}

// TestRefusesSyntax: what is not a command line at all is answered with one line, which names where
// to read on.
func TestRefusesSyntax(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"tain"}, `unknown command "tain" for "penstock"; did you mean train? see penstock --help`},
		{[]string{"checkpoint", "inspct", "x"},
			`unknown command "inspct" for "penstock checkpoint"; did you mean inspect? see`},
		{[]string{"help", "trian"}, `unknown command "trian" for "penstock"; did you mean train? see`},
		{[]string{"help", "train", "gpt"},
			`unexpected argument "gpt" for "penstock train"; see penstock train --help`},
		{[]string{"train", "--stagse", "2"},
			"unknown flag: --stagse; did you mean --stages? see penstock train --help"},
		{[]string{"train", "--learning-rate", "2"}, "did you mean --lr?"},
		{[]string{"train", "--bf16"}, "did you mean --autocast?"},
		{[]string{"profile", "--gpus", "2"}, "did you mean --devices?"},
		{[]string{"train", "--stages", "two"}, "two"},
		{[]string{"train", "--stages"}, "--stages"},
		{[]string{"train", "--seed", "-1"}, "-1"},
		{[]string{"train", "--lr", "fast"}, "fast"},
		{[]string{"train", "resnet20"}, `"resnet20"`},
		{[]string{"models", "mlp", "gpt"}, `"gpt"`},
		{[]string{"version", "2"}, `"2"`},
		{[]string{"--frobnicate"}, "--frobnicate"},
	} {
		r := command(t, tt.args...)
		line, rest, _ := strings.Cut(r.stderr, "\n")
		if r.code != exitUsage || r.stdout != "" || !strings.Contains(line, tt.want) ||
			!strings.HasSuffix(line, " --help") || rest != "" {
			t.Errorf("%q: exit code %d, stdout %q, stderr:\n%s", tt.args, r.code, r.stdout, r.stderr)
		}
	}
}
