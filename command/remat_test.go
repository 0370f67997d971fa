package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/internal/planfile"
	"penstock.example/internal/solver"
	"penstock.example/internal/torchtest"
	"penstock.example/remat"
)

// rematChain is the chain of the tests: six layers of 1, 2 .. 6 MiB that save twice as much,
// without temporaries.
func rematChain() remat.Chain {
	c := remat.Chain{Input: 1 << 20, InputGradient: 1 << 20, Loss: remat.Loss{Backward: 100}}
	for i := range 6 {
		size := int64(i+1) << 20
		c.Layers = append(c.Layers, remat.Layer{Name: string(rune('a' + i)), Forward: 1000,
			ForwardNoGrad: 900, Backward: 2000, Output: size, Saved: 2 * size, Gradient: size})
	}
	return c
}

// chainFile writes the chain to a file.
func chainFile(t *testing.T) string {
	t.Helper()
	text := noerr.Get(planfile.FormatChain(rematChain()))(t)
	return textFile(t, "chain.json", string(text))
}

func textFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	noerr.Do(t, os.WriteFile(path, []byte(text), 0o666))
	return path
}

// piped runs a command line with a pipe as standard input, which has room for the text.
func piped(t *testing.T, text string, args ...string) ran {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString(text); err != nil {
		t.Fatal(err)
	}
	noerr.Do(t, writer.Close())
	return reading(t, reader, args...)
}

// reading runs a command line with a file as standard input, and closes it.
func reading(t *testing.T, stdin *os.File, args ...string) ran {
	t.Helper()
	defer func(was *os.File) {
		os.Stdin = was
		_ = stdin.Close()
	}(os.Stdin)
	os.Stdin = stdin
	return command(t, args...)
}

func TestRematSolve(t *testing.T) {
	chain, c := chainFile(t), rematChain()
	out := filepath.Join(t.TempDir(), "plan.json")
	r := must(t, "remat", "solve", chain, "--limit", "30MiB", "--format", "json", "--out", out)
	p := noerr.Get(planfile.ParsePlan([]byte(r.stdout)))(t)
	if err := remat.CheckPlan(c, p); err != nil || p.Limit != 30<<20 || p.Chain != c.Fingerprint() {
		t.Errorf("%v: %v", err, p)
	}
	if file, err := os.ReadFile(out); err != nil || string(file) != r.stdout {
		t.Errorf("the file has\n%s, %v; want\n%s", file, err, r.stdout)
	}
	if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	says(t, must(t, "remat", "solve", chain, "--limit", "30MiB").stdout, "peak ", " of 30.0 MiB (", "time ",
		"on computing everything once", "no plan under the limit takes less than", "recomputed ")
	// At the peak of plain training, to the byte, nothing is computed again; one byte less, something is.
	plain := noerr.Get(remat.Check(c, remat.None(6)))(t)
	for limit, again := range map[int64]bool{plain.Peak: false, plain.Peak - 1: true} {
		p := noerr.Get(solver.Solve(t.Context(), c, limit, solver.Options{}))(t)
		if report, err := remat.Check(c, p.Ops); err != nil || (report.Recomputed > 0) != again {
			t.Errorf("limit %d: %d recomputed, %v", limit, report.Recomputed, err)
		}
	}
}

// says checks that a text has parts.
func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// What one writes another reads.
func TestRematPipes(t *testing.T) {
	chain := chainFile(t)
	text := noerr.Get(os.ReadFile(chain))(t)
	solved := piped(t, string(text), "remat", "solve", "-", "--limit", "30MiB", "--format", "json")
	if solved.code != exitDone || solved.stderr != "" {
		t.Fatalf("%+v", solved)
	}
	says(t, piped(t, solved.stdout, "remat", "check", chain, "-").stdout, "the plan holds: ")
	r := piped(t, strings.Replace(solved.stdout, `"peak_bytes":`, `"peak_bytes":1`, 1), "remat", "check",
		chain, "-")
	if says(t, r.stderr, "the plan does not hold: the peak is"); r.code != exitFailed {
		t.Errorf("%+v", r)
	}
	r = piped(t, "{}", "remat", "explain", "-", "--limit", "30MiB")
	if says(t, r.stderr, `standard input: chain, the field "version" is missing`); r.code != exitUsage {
		t.Errorf("%+v", r)
	}
}

func TestRematExplain(t *testing.T) {
	chain := chainFile(t)
	var line struct {
		explanationLine
		Layers []struct {
			Name, Keeps string
			Recomputed  int
			Held        int64   `json:"held_bytes"`
			Time        float64 `json:"time_us"`
			Extra       float64 `json:"extra_us"`
		} `json:"layers"`
	}
	decode(t, must(t, "remat", "explain", chain, "--limit", "30MiB", "--format", "json").stdout, &line)
	// The greatest limit is for x0, X1..X6 of 42 MiB, y6 and y5.
	if line.Limit != 30<<20 || line.Peak > line.Limit || line.Peak < line.Least || line.Recomputed == 0 ||
		len(line.Layers) != 6 || len(line.More) != 3 || line.Greatest != (1+42+6+5)<<20 {
		t.Errorf("%+v", line)
	}
	table := must(t, "remat", "explain", chain, "--limit", "30MiB").stdout
	says(t, table, "LAYER  KEEPS", "all 6", "\nleast ", "set by backward of layer 5, f",
		"\ngreatest  54.0 MiB", "10 MB ", "100 MB ", "more would save")
	if strings.Contains(table, "1000 MB") {
		t.Errorf("1000 MB save no more than 100, and are told of:\n%s", table)
	}
}

func TestRematCompare(t *testing.T) {
	chain := chainFile(t)
	var list []comparedLine
	decode(t, must(t, "remat", "compare", chain, "--format", "json").stdout, &list)
	strategies := map[string]bool{}
	for _, l := range list {
		strategies[l.Strategy] = true
		if l.OptimumPeak > l.Peak || l.OptimumTime > l.Time {
			t.Errorf("%+v", l)
		}
	}
	if len(strategies) != 3 {
		t.Errorf("%v", strategies)
	}
	says(t, must(t, "remat", "compare", chain).stdout, "STRATEGY", "GAIN", "\nnone ", "\nsequential 2 ",
		"54.0 MiB",
		"100 %")
}

func TestRematCurve(t *testing.T) {
	out := filepath.Join(t.TempDir(), "curve.svg")
	says(t, must(t, "remat", "curve", chainFile(t), "--out", out).stdout, " plans from ", " to 54.0 MiB")
	before := noerr.Get(os.ReadFile(out))(t)
	says(t, string(before), "memory, MiB", "extra time", "chain.json, 6 layers", "best plan", "sequential",
		"none", "all")
	says(t, must(t, "remat", "curve", chainFile(t), "--out", out, "--format", "json").stdout,
		`"peak_bytes":`, `"time_us":`)
	if r := command(t, "remat", "curve", textFile(t, "x.json", "{"), "--out", out); r.code != exitUsage {
		t.Errorf("%+v", r)
	}
	if after, err := os.ReadFile(out); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a failure changed the picture: %v", err)
	}
	// A chain without bytes and times has one plan, and a picture all the same.
	text := noerr.Get(planfile.FormatChain(remat.Chain{Layers: make([]remat.Layer, 2)}))(t)
	must(t, "remat", "curve", textFile(t, "chain.json", string(text)), "--out", out)
	if svg, err := os.ReadFile(out); err != nil || strings.Contains(string(svg), "NaN") {
		t.Errorf("%v, or NaN", err)
	}
}

// A signal ends each verb that takes time, and nothing is written.
func TestVerbsAreInterrupted(t *testing.T) {
	torchtest.Check(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir, chain := t.TempDir(), chainFile(t)
	for _, line := range []string{"remat solve CHAIN --limit 30MiB --out DIR/plan.json",
		"remat explain CHAIN --limit 30MiB", "remat compare CHAIN", "remat curve CHAIN --out DIR/curve.svg",
		"profile --model mlp --out DIR/chain.json", "balance --model mlp --stages 2"} {
		args := strings.Fields(strings.NewReplacer("CHAIN", chain, "DIR", dir).Replace(line))
		var stdout, stderr bytes.Buffer
		code := run(ctx, args, &stdout, &stderr)
		if says(t, stderr.String(), "interrupted; nothing is written"); code != exitFailed ||
			stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, stdout %q", line, code, &stdout)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
