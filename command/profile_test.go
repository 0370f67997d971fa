package command

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/internal/planfile"
	"penstock.example/remat"
)

// profiled is a command line that measures a network of a fraction of a second once.
func profiled(args ...string) []string {
	return with([]string{"profile", "--model", "resnet20", "--set", "width=4", "--size", "16", "--batch",
		"4", "--repeats", "1"}, args...)
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

// Standard output and a file get the same chain, whose times were measured.
func TestProfileWritesTheChain(t *testing.T) {
	c := chainOf(t, profiled("--format", "json")...)
	file := filepath.Join(t.TempDir(), "chain.json")
	says(t, must(t, profiled("--out", file)...).stdout, "LAYER")
	text := noerr.Get(os.ReadFile(file))(t)
	written, err := planfile.ParseChain(text)
	if err != nil || c.Fingerprint() != written.Fingerprint() || written.Model == "" || written.Rows != 4 ||
		written.Threads != 1 || written.Devices != runtime.NumCPU() {
		t.Errorf("%+v, %v", written, err)
	}
	for i, l := range c.Layers {
		if l.Forward <= 0 || l.ForwardNoGrad <= 0 || l.Backward <= 0 || l.Saved < l.Output {
			t.Errorf("layer %d: %+v", i, l)
		}
	}
	if c.Loss.Backward <= 0 || c.Input != 4*3*16*16*4 || c.InputGradient != 0 {
		t.Errorf("loss %+v, input %d bytes, its gradient %d", c.Loss, c.Input, c.InputGradient)
	}
	saved := func(c remat.Chain) (sum int64) {
		for _, l := range c.Layers {
			sum += l.Saved
		}
		return sum
	}
	if half := chainOf(t, profiled("--format", "json", "--autocast")...); saved(half) >= saved(c) {
		t.Errorf("with half the bits %d bytes are saved, and with all %d", saved(half), saved(c))
	}
}

// The limits that the table tells are exactly those of the plans.
func TestProfileTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "chain.json")
	text := must(t, "profile", "--model", "unet", "--set", "B=1,C=4,size=32,depth=2", "--batch", "4",
		"--repeats", "1", "--out", file).stdout
	says(t, text, "LAYER", "FORWARD", "SAVED", "unet on 4 samples of [3 32 32]: ",
		"step ", "of parameters and buffers", "loss ")
	bytesOf := func(line string) int64 {
		m := regexp.MustCompile(`(?m)^` + line + `.*?\((\d+) bytes\)`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no line %q in\n%s", line, text)
		}
		return noerr.Get(strconv.ParseInt(m[1], 10, 64))(t)
	}
	least, greatest := bytesOf("least"), bytesOf("greatest")
	for _, test := range []struct {
		limit int64
		code  int
		want  string
	}{
		{least - 1, exitUsage, "no plan stays under"}, {least, exitDone, "forwards"},
		{greatest - 1, exitDone, "forwards"}, {greatest, exitDone, "recomputed  0 forwards"},
	} {
		r := command(t, "remat", "solve", file, "--limit", fmt.Sprint(test.limit))
		if says(t, r.stdout+r.stderr, test.want); r.code != test.code {
			t.Errorf("limits from %d to %d; under %d: exit code %d", least, greatest, test.limit, r.code)
		}
		if test.limit == greatest-1 && strings.Contains(r.stdout, "recomputed  0 forwards") {
			t.Errorf("a byte below %d nothing is recomputed either", greatest)
		}
	}
}

// TestProfileOfEveryModel: what is made up as input and as targets is what the model and the loss
// take, with options too.
func TestProfileOfEveryModel(t *testing.T) {
	full(t)
	for _, args := range [][]string{
		{"mlp", "--set", "size=6,channels=2"}, {"resnet20", "--set", "channels=1,width=4"},
		{"resnet18", "--size", "32", "--set", "classes=5"},
		{"gpt", "--set", "context=5,width=8,heads=2,classes=7"},
		{"unet", "--set", "B=1,C=4,size=32,depth=2,classes=3"}, {"amoebanetd", "--set", "L=3,D=16,size=32"},
		{"vgg11_bn", "--set", "size=32,width=16"}, {"densenet121", "--size", "32", "--set", "growth=4"},
		{"googlenet", "--size", "64", "--set", "aux=1,classes=5"},
	} {
		c := chainOf(t, with([]string{"profile", "--batch", "2", "--repeats", "1", "--format", "json",
			"--model"}, args...)...)
		if _, err := remat.Check(c, remat.All(len(c.Layers))); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}
