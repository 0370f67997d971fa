package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/remat"
	"penstock.example/remat/planfile"
)

// profiled is a command line that measures a network of a fraction of a second once.
func profiled(args ...string) []string {
	return with([]string{"profile", "--model", "resnet20", "--set", "width=4", "--size", "16", "--batch", "4", "--repeats", "1"}, args...)
}

// chainOf reads what a command line of penstock profile prints as JSON.
func chainOf(t *testing.T, args ...string) remat.Chain {
	t.Helper()
	c, err := planfile.ParseChain([]byte(must(t, args...).stdout))
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return c
}

// TestProfileWritesTheChain: standard output and a file get the same chain, whose bytes are those
// of any other run, and whose times were measured.
func TestProfileWritesTheChain(t *testing.T) {
	c := chainOf(t, profiled("--out", "-")...)
	again := chainOf(t, profiled("--format", "json")...)
	file := filepath.Join(t.TempDir(), "chain.json")
	r := must(t, profiled("--out", file)...)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	written, err := planfile.ParseChain(text)
	if err != nil {
		t.Fatal(err)
	}
	if c.Fingerprint() != again.Fingerprint() || c.Fingerprint() != written.Fingerprint() {
		t.Errorf("the chains of three runs: %s, %s and %s", c.Fingerprint(), again.Fingerprint(), written.Fingerprint())
	}
	if written.Model == "" || written.Rows != 4 || written.Threads != 1 || written.Devices != runtime.NumCPU() {
		t.Errorf("the chain is of %q, %d rows, %d threads and %d devices", written.Model, written.Rows, written.Threads, written.Devices)
	}
	if !strings.Contains(r.stdout, "LAYER") || strings.Contains(r.stdout, "{") {
		t.Errorf("beside the file there is\n%s", r.stdout)
	}
	for i, l := range c.Layers {
		if l.Forward <= 0 || l.ForwardNoGrad <= 0 || l.Backward <= 0 || l.Saved < l.Output {
			t.Errorf("layer %d: %+v", i, l)
		}
	}
	if c.Loss.Backward <= 0 || c.Input != 4*3*16*16*4 || c.InputGradient != 0 {
		t.Errorf("loss %+v, input %d bytes, its gradient %d", c.Loss, c.Input, c.InputGradient)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
}

// TestProfileFlags: each flag changes what it is about and nothing else.
func TestProfileFlags(t *testing.T) {
	usual := chainOf(t, profiled("--out", "-")...)
	same := func(c remat.Chain) bool { return c.Fingerprint() == usual.Fingerprint() }
	for _, test := range []struct {
		args   []string
		holds  func(c remat.Chain) bool
		reason string
	}{
		{[]string{"--seed", "7"}, same, "bytes do not depend on the seed"},
		{[]string{"--batch", "8"}, func(c remat.Chain) bool { return c.Input == 2*usual.Input && len(c.Layers) == len(usual.Layers) }, "twice the batch is twice the input"},
		{[]string{"--loss", "none"}, func(c remat.Chain) bool { return c.Loss == remat.Loss{} && len(c.Layers) == len(usual.Layers) }, "no loss costs nothing"},
		{[]string{"--autocast"}, func(c remat.Chain) bool { return saved(c) < saved(usual) }, "half the bits are fewer bytes"},
		{[]string{"--max-units", "6"}, func(c remat.Chain) bool { return len(c.Layers) <= 6 && len(c.Layers) > 1 }, "layers are joined"},
	} {
		if c := chainOf(t, profiled(with(test.args, "--out", "-")...)...); !test.holds(c) {
			t.Errorf("%v: %s; got %d layers, input %d, saved %d, loss %+v; without it %d, %d, %d", test.args, test.reason, len(c.Layers), c.Input, saved(c), c.Loss, len(usual.Layers), usual.Input, saved(usual))
		}
	}
}

func saved(c remat.Chain) (sum int64) {
	for _, l := range c.Layers {
		sum += l.Saved
	}
	return sum
}

// TestProfileTable: the limits that the table tells are exactly those of the plans.
func TestProfileTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "chain.json")
	text := must(t, "profile", "--model", "unet", "--set", "B=1,C=4,size=32,depth=2", "--batch", "4", "--repeats", "1", "--out", file).stdout
	bytesOf := func(line string) int64 {
		m := regexp.MustCompile(`(?m)^` + line + `.*?\((\d+) bytes\)`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no line %q in\n%s", line, text)
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	least, greatest := bytesOf("least"), bytesOf("greatest")
	solve := func(limit int64) ran { return command(t, "remat", "solve", file, "--limit", fmt.Sprint(limit)) }
	for _, test := range []struct {
		limit int64
		code  int
		want  string
	}{
		{least - 1, exitFailed, "no plan stays under"}, {least, exitDone, "forwards"}, {greatest - 1, exitDone, "forwards"}, {greatest, exitDone, "recomputed  0 forwards"},
	} {
		r := solve(test.limit)
		if all := r.stdout + r.stderr; r.code != test.code || !strings.Contains(all, test.want) {
			t.Errorf("limits from %d to %d; under %d: exit code %d, no %q in\n%s", least, greatest, test.limit, r.code, test.want, all)
		}
	}
	if solve(greatest-1).stdout == solve(greatest).stdout || strings.Contains(solve(greatest-1).stdout, "recomputed  0 forwards") {
		t.Errorf("a byte below %d nothing is recomputed either", greatest)
	}
	for _, want := range []string{
		"LAYER", "FORWARD", "SAVED", "unet on 4 samples of 3 x 32 x 32: ", "joined with the one before (works in place on its input):", "step ", "of parameters and buffers", "loss ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestProfileOfEveryModel: what is made up as input and as targets is what the model and the loss
// take, with options too.
func TestProfileOfEveryModel(t *testing.T) {
	full(t)
	for _, args := range [][]string{
		{"mlp", "--set", "size=6,channels=2"}, {"resnet20", "--set", "channels=1,width=4"}, {"resnet18", "--size", "32", "--set", "classes=5"}, {"gpt", "--set", "context=5,width=8,heads=2,classes=7"},
		{"unet", "--set", "B=1,C=4,size=32,depth=2,classes=3"}, {"amoebanetd", "--set", "L=3,D=16,size=32"}, {"vgg11_bn", "--set", "size=32,width=16"}, {"densenet121", "--size", "32", "--set", "growth=4"},
		{"googlenet", "--size", "64", "--set", "aux=1,classes=5"},
	} {
		c := chainOf(t, with([]string{"profile", "--batch", "2", "--repeats", "1", "--out", "-", "--model"}, args...)...)
		if _, err := remat.Check(c, remat.All(len(c.Layers))); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestProfileRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"profile"}, exitUsage, []string{"--model is needed", "resnet20"}},
		{[]string{"profile", "--model", "resnet21"}, exitUsage, []string{`"resnet21"`, "resnet20"}},
		{[]string{"profile", "--model", "resnet21", "--size", "32"}, exitUsage, []string{`"resnet21"`, "resnet20"}},
		{[]string{"profile", "--model", "gpt", "--size", "32"}, exitUsage, []string{"--size 32", "gpt has", "context="}},
		{[]string{"profile", "--model", "gpt", "--set", "heads=3"}, exitUsage, []string{"--set heads=3"}},
		{profiled("extra"), exitUsage, []string{`"extra"`, "--help"}},
		{profiled("--size", "0"), exitUsage, []string{"--size 0", "whole number from 1"}},
		{profiled("--set", "size=32"), exitUsage, []string{"--size 16 and --set size=32", "one of the two"}},
		{profiled("--set", "depht=2"), exitUsage, []string{"--set depht=2", "width="}},
		{profiled("--batch", "0"), exitUsage, []string{"--batch 0", "at least 1"}},
		{profiled("--batch", "99999999999"), exitUsage, []string{"--batch 99999999999", "at most"}},
		{profiled("--batch", "many"), exitUsage, []string{"many", "--help"}},
		{profiled("--threads", "257"), exitUsage, []string{"--threads 257", "at most 256"}},
		{profiled("--repeats", "0"), exitUsage, []string{"--repeats 0"}},
		{profiled("--max-units", "0"), exitUsage, []string{"--max-units 0", "at least 1"}},
		{profiled("--loss", "hinge"), exitUsage, []string{`--loss "hinge"`, "cross-entropy or none"}},
		{profiled("--format", "text"), exitUsage, []string{`"text"`, "table or json"}},
		{profiled("--out", ""), exitUsage, []string{`--out ""`, "want a path"}},
		{profiled("--out", "-", "--format", "table"), exitUsage, []string{"--out - and --format table"}},
		{profiled("--out", dir), exitUsage, []string{"--out", "cannot be written: not a regular file but a directory"}},
		{profiled("--out", filepath.Join(dir, "no", "chain.json")), exitUsage, []string{"--out", "cannot be written: there is no folder"}},
	} {
		t.Run(strings.Join(test.args[1:], " "), func(t *testing.T) {
			r := command(t, test.args...)
			line := strings.TrimSuffix(r.stderr, "\n")
			if r.code != test.code || r.stdout != "" || !strings.HasPrefix(line, "penstock: ") || strings.Contains(line, "\n") {
				t.Errorf("exit code %d; stdout %q, stderr:\n%s", r.code, r.stdout, r.stderr)
			}
			for _, part := range test.want {
				if !strings.Contains(line, part) {
					t.Errorf("no %q in: %s", part, line)
				}
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("refusals leave %v", left)
	}
}

// TestProfileStops: a signal ends the context, and the command soon after. What is in the file
// stays, and nothing is beside it.
func TestProfileStops(t *testing.T) {
	torchtest.Check(t)
	file := textFile(t, "chain.json", "of old")
	for _, args := range [][]string{profiled("--out", file), profiled("--out", "-"), profiled()} {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var stdout, stderr bytes.Buffer
		code := run(ctx, args, &stdout, &stderr)
		if code != exitFailed || stdout.Len() != 0 || stderr.String() != "penstock: interrupted while layers were measured; nothing is written\n" {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", args, code, &stdout, &stderr)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "of old" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
