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
	c := chainOf(t, profiled("--format", "json")...)
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
	if c.Fingerprint() != written.Fingerprint() {
		t.Errorf("the chains of two runs: %s and %s", c.Fingerprint(), written.Fingerprint())
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
	usual := chainOf(t, profiled("--format", "json")...)
	same := func(c remat.Chain) bool { return c.Fingerprint() == usual.Fingerprint() }
	for _, test := range []struct {
		args   []string
		holds  func(c remat.Chain) bool
		reason string
	}{
		{[]string{"--seed", "7"}, same, "bytes do not depend on the seed"},
		{[]string{"--batch", "8"}, func(c remat.Chain) bool { return c.Input == 2*usual.Input && len(c.Layers) == len(usual.Layers) }, "twice the batch is twice the input"},
		{[]string{"--autocast"}, func(c remat.Chain) bool { return saved(c) < saved(usual) }, "half the bits are fewer bytes"},
	} {
		if c := chainOf(t, profiled(with(test.args, "--format", "json")...)...); !test.holds(c) {
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
		"LAYER", "FORWARD", "SAVED", "unet on 4 samples of [3 32 32]: ", "joined with the one before (works in place on its input)", "step ", "of parameters and buffers", "loss ",
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
		c := chainOf(t, with([]string{"profile", "--batch", "2", "--repeats", "1", "--format", "json", "--model"}, args...)...)
		if _, err := remat.Check(c, remat.All(len(c.Layers))); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestProfileStops: a signal ends the context, and the command soon after. What is in the file
// stays, and nothing is beside it.
func TestProfileStops(t *testing.T) {
	torchtest.Check(t)
	file := textFile(t, "chain.json", "of old")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, profiled("--out", file), &stdout, &stderr)
	if code != exitFailed || stdout.Len() != 0 || stderr.String() != "penstock: interrupted while layers were measured; nothing is written\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "of old" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
