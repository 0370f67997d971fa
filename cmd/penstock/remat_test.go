package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/torchtest"
	"penstock.example/remat"
	"penstock.example/remat/planfile"
	"penstock.example/remat/solver"
)

// rematChain is the chain of the tests: six layers of 1, 2 .. 6 MiB that save twice as much,
// without temporaries.
func rematChain() remat.Chain {
	c := remat.Chain{Input: 1 << 20, InputGradient: 1 << 20, Loss: remat.Loss{Backward: 100}}
	for i := range 6 {
		size := int64(i+1) << 20
		c.Layers = append(c.Layers, remat.Layer{Name: string(rune('a' + i)), Forward: 1000, ForwardNoGrad: 900, Backward: 2000, Output: size, Saved: 2 * size, Gradient: size})
	}
	return c
}

// chainFile writes the chain to a file.
func chainFile(t *testing.T) string {
	t.Helper()
	text, err := planfile.FormatChain(rematChain())
	if err != nil {
		t.Fatal(err)
	}
	return textFile(t, "chain.json", string(text))
}

func textFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
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
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
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

func TestRematRefuses(t *testing.T) {
	chain, dir := chainFile(t), t.TempDir()
	missing, out := filepath.Join(dir, "missing.json"), filepath.Join(dir, "out.json")
	broken := textFile(t, "broken.json", `{"version":1,"input_bytes":-5}`)
	plan := textFile(t, "plan.json", `{"version":1,"feasible":true,"limit_bytes":1,"peak_bytes":1,"time_us":1,"lower_bound_us":1,"ops":[{"op":"loss"}]}`)
	solve := func(args ...string) []string { return with([]string{"remat", "solve", chain}, args...) }
	for _, test := range []struct {
		args []string
		code int
		want []string // parts of the line
	}{
		{[]string{"remat", "sovle"}, exitUsage, []string{`"sovle"`, "--help"}},
		{[]string{"remat", "solve"}, exitUsage, []string{"CHAIN is missing"}},
		{[]string{"remat", "solve", "", "--limit", "1MiB"}, exitUsage, []string{"CHAIN is an empty name"}},
		{solve(), exitUsage, []string{"--limit is needed", "700MiB"}},
		{solve("more", "--limit", "1MiB"), exitUsage, []string{`unexpected argument "more"`}},
		{solve("--limit", "0"), exitUsage, []string{"--limit 0", "more than 0"}},
		{solve("--limit", "0.2"), exitUsage, []string{"--limit 0.2", "more than 0"}},
		{solve("--limit", "-5MiB"), exitUsage, []string{`--limit "-5MiB": want a number of bytes`, "512MiB"}},
		{solve("--limit", "much"), exitUsage, []string{`"much": want a number of bytes`}},
		{solve("--limit", ""), exitUsage, []string{`"": want a number of bytes`}},
		{solve("--limit", "1e999GiB"), exitUsage, []string{`want a number of bytes`}},
		{solve("--limit", "99999999999TiB"), exitUsage, []string{"more than any device"}},
		{solve("--limit", "1GiB", "--slots", "0"), exitUsage, []string{"--slots 0", "at least 1"}},
		{solve("--limit", "1GiB", "--slots", "-3"), exitUsage, []string{"--slots -3"}},
		{solve("--limit", "1GiB", "--format", "xml"), exitUsage, []string{`"xml"`, "table or json"}},
		{solve("--limit", "1GiB", "--out", ""), exitUsage, []string{"--out"}},
		{solve("--limit", "1GiB", "--out", filepath.Join(dir, "no", "plan.json")), exitUsage, []string{"--out", "cannot be written: there is no folder"}},
		{solve("--limit", "1GiB", "--out", dir), exitUsage, []string{"--out", "cannot be written: not a regular file but a directory"}},
		{solve("--limit", "1MiB", "--out", out), exitFailed, []string{"no plan stays under 1.0 MiB", "the least is", "layer 5, f, in backward", "saved"}},
		{[]string{"remat", "solve", missing, "--limit", "1GiB"}, exitUsage, []string{"missing.json", "no such file"}},
		{[]string{"remat", "solve", broken, "--limit", "1GiB", "--out", out}, exitUsage, []string{"broken.json: chain, byte", "input_bytes: -5 bytes; want 0 or more"}},
		{[]string{"remat", "explain", chain}, exitUsage, []string{"--limit is needed"}},
		{[]string{"remat", "explain", chain, "--limit", "2MiB"}, exitFailed, []string{"no plan stays under 2.0 MiB"}},
		{[]string{"remat", "explain", missing, "--limit", "2MiB"}, exitUsage, []string{"missing.json"}},
		{[]string{"remat", "compare"}, exitUsage, []string{"CHAIN is missing"}},
		{[]string{"remat", "compare", broken}, exitUsage, []string{"broken.json"}},
		{[]string{"remat", "compare", chain, "--format", "text"}, exitUsage, []string{`"text"`}},
		{[]string{"remat", "curve", chain}, exitUsage, []string{"--out is needed", "curve.svg"}},
		{[]string{"remat", "curve", chain, "--out", out}, exitUsage, []string{"out.json", ".svg"}},
		{[]string{"remat", "curve", broken, "--out", filepath.Join(dir, "a.svg")}, exitUsage, []string{"broken.json"}},
		{[]string{"remat", "check", chain}, exitUsage, []string{"PLAN is missing"}},
		{[]string{"remat", "check", "-", "-"}, exitUsage, []string{"both -"}},
		{[]string{"remat", "check", chain, missing}, exitUsage, []string{"missing.json"}},
		{[]string{"remat", "check", chain, broken}, exitUsage, []string{`broken.json: plan, byte`, `unknown field "input_bytes"`}},
		{[]string{"remat", "check", chain, plan}, exitFailed, []string{"the plan does not hold: operation 0, L: the loss needs x(6)"}},
	} {
		r := command(t, test.args...)
		if r.code != test.code || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, want %d; stdout %q, stderr %q", test.args, r.code, test.code, r.stdout, r.stderr)
		}
		for _, want := range test.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%q: no %q in %q", test.args, want, r.stderr)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestRematSolve(t *testing.T) {
	chain, c := chainFile(t), rematChain()
	out := filepath.Join(t.TempDir(), "plan.json")
	r := must(t, "remat", "solve", chain, "--limit", "30MiB", "--format", "json", "--out", out)
	p, err := planfile.ParsePlan([]byte(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	if err := remat.CheckPlan(c, p); err != nil || !p.Feasible || p.Limit != 30<<20 || p.Chain != c.Fingerprint() {
		t.Errorf("%v: %v", err, p)
	}
	if file, err := os.ReadFile(out); err != nil || string(file) != r.stdout {
		t.Errorf("the file has\n%s, %v; want\n%s", file, err, r.stdout)
	}
	if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if r := must(t, "remat", "check", chain, out); !strings.HasPrefix(r.stdout, "the plan holds: ") {
		t.Errorf("check says %q", r.stdout)
	}
	table := must(t, "remat", "solve", chain, "--limit", "30MiB", "--slots", "50").stdout
	for _, want := range []string{"peak ", " of 30.0 MiB (", "time ", "on computing everything once", "no plan under the limit takes less than", "recomputed ", "1 column", "\nmemory"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	// At the peak of plain training, to the byte, nothing is computed again; one byte less,
	// something is.
	plain, err := remat.Check(c, remat.None(6))
	if err != nil {
		t.Fatal(err)
	}
	for limit, again := range map[int64]bool{plain.Peak: false, plain.Peak - 1: true} {
		p, err := solveUnder(t.Context(), c, limit, solver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if report, err := remat.Check(c, p.Ops); err != nil || (report.Recomputed > 0) != again {
			t.Errorf("limit %d: %d recomputed, %v", limit, report.Recomputed, err)
		}
	}
}

// TestRematPipes: what one writes another reads.
func TestRematPipes(t *testing.T) {
	chain := chainFile(t)
	text, err := os.ReadFile(chain)
	if err != nil {
		t.Fatal(err)
	}
	solved := piped(t, string(text), "remat", "solve", "-", "--limit", "30MiB", "--format", "json")
	if solved.code != exitDone || solved.stderr != "" {
		t.Fatalf("%+v", solved)
	}
	if r := piped(t, solved.stdout, "remat", "check", chain, "-"); r.code != exitDone || !strings.Contains(r.stdout, "the plan holds") {
		t.Errorf("%+v", r)
	}
	if r := piped(t, strings.Replace(solved.stdout, `"peak_bytes":`, `"peak_bytes":1`, 1), "remat", "check", chain, "-"); r.code != exitFailed || !strings.Contains(r.stderr, "the plan does not hold: the peak is") {
		t.Errorf("%+v", r)
	}
	if r := piped(t, "{}", "remat", "explain", "-", "--limit", "30MiB"); r.code != exitUsage || !strings.Contains(r.stderr, `standard input: chain, byte 2: the field "version" is missing`) {
		t.Errorf("%+v", r)
	}
}

func TestRematExplain(t *testing.T) {
	chain, c := chainFile(t), rematChain()
	var line explanationLine
	decode(t, must(t, "remat", "explain", chain, "--limit", "30MiB", "--format", "json").stdout, &line)
	if line.Limit != 30<<20 || line.Peak > line.Limit || line.Peak < line.Least || line.Once != 18100 || line.Time < line.Once || len(line.Layers) != 6 || len(line.More) != 3 {
		t.Errorf("%+v", line)
	}
	again, extra := 0, 0.0
	for i, l := range line.Layers {
		if l.Name != c.Layers[i].Name || !slices.Contains([]string{"nothing", "input", "everything"}, l.Keeps) {
			t.Errorf("layer %d: %+v", i, l)
		}
		again, extra = again+l.Recomputed, extra+l.Extra
	}
	if again != line.Recomputed || again == 0 || extra < line.Time-line.Once-1e-6 || extra > line.Time-line.Once+1e-6 {
		t.Errorf("%d again, %v us; in all %+v", again, extra, line)
	}
	if last := line.More[2]; last.Time != line.Once || last.Saved != line.Time-line.Once {
		t.Errorf("with 1 GB more: %+v", last)
	}
	// x0, X1..X6 of 42 MiB, y6 and y5.
	if line.Greatest != (1+42+6+5)<<20 || line.LeastLayer != 5 || line.LeastOp != "backward" {
		t.Errorf("%+v", line)
	}
	table := must(t, "remat", "explain", chain, "--limit", "30MiB").stdout
	for _, want := range []string{"LAYER  KEEPS", "all 6", "\nleast ", "set by backward of layer 5, f", "\ngreatest  54.0 MiB", "10 MB ", "100 MB ", "more would save"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if strings.Contains(table, "1000 MB") {
		t.Errorf("1000 MB save no more than 100, and are told of:\n%s", table)
	}
}

func TestRematCompare(t *testing.T) {
	chain := chainFile(t)
	var list []comparedLine
	decode(t, must(t, "remat", "compare", chain, "--format", "json").stdout, &list)
	var strategies []string
	for _, l := range list {
		strategies = append(strategies, l.Strategy)
		if l.Gain < -0.001 || l.OptimumPeak > l.Peak || l.OptimumOverhead > l.Overhead+0.001 || (l.Segments > 0) != (l.Strategy == "sequential") || (l.Checkpoints > 0) != (l.Strategy == "revolve") {
			t.Errorf("%+v", l)
		}
	}
	slices.Sort(strategies)
	if diff := cmp.Diff([]string{"all", "none", "revolve", "sequential"}, slices.Compact(strategies)); diff != "" {
		t.Error(diff)
	}
	table := must(t, "remat", "compare", chain).stdout
	for _, want := range []string{"STRATEGY", "GAIN", "\nnone ", "\nsequential 2 ", "54.0 MiB", "100 %"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if lines := strings.Count(table, "\n"); lines != 2*(len(list)+1)+1 { // in two parts, as all columns have no place beside each other
		t.Errorf("%d lines for %d strategies", lines, len(list))
	}
}

func TestRematCurve(t *testing.T) {
	out := filepath.Join(t.TempDir(), "curve.svg")
	r := must(t, "remat", "curve", chainFile(t), "--out", out)
	if !strings.Contains(r.stdout, " plans from ") || !strings.Contains(r.stdout, " to 54.0 MiB") {
		t.Errorf("it says %q", r.stdout)
	}
	svg, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	decoder, texts, left := xml.NewDecoder(bytes.NewReader(svg)), 0, 0
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "text" { // where it is meant to be, in any font
			at := map[string]string{}
			for _, a := range e.Attr {
				at[a.Name.Local] = a.Value
			}
			if at["text-anchor"] == "start" {
				left++
			} else if at["text-anchor"] != "middle" {
				t.Errorf("text %v", e.Attr)
			}
			if texts++; at["textLength"] == "" {
				t.Errorf("text %v", e.Attr)
			}
		}
	}
	if texts < 10 || left != 6 { // those of the legend, beside their marks: the curve, the least, and four strategies
		t.Errorf("%d texts, %d of them from the left", texts, left)
	}
	for _, want := range []string{"memory, MiB", "time on top", "chain.json, 6 layers", "best plan", "least that has a plan", "sequential", "revolve", "none", "all", "Arial"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("no %q in the picture", want)
		}
	}
	before, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if r := command(t, "remat", "curve", textFile(t, "x.json", "{"), "--out", out); r.code != exitUsage {
		t.Errorf("%+v", r)
	}
	if after, err := os.ReadFile(out); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a failure changed the picture: %v", err)
	}
}

// TestRematCurveOfOnePoint: a chain without bytes and times has one plan, and a picture all the same.
func TestRematCurveOfOnePoint(t *testing.T) {
	for name, c := range map[string]remat.Chain{
		"nothing":  {Layers: make([]remat.Layer, 2)},
		"one byte": {Input: 1, Layers: []remat.Layer{{Output: 1, Saved: 1, Forward: 1}}},
	} {
		text, err := planfile.FormatChain(c)
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "curve.svg")
		r := must(t, "remat", "curve", textFile(t, "chain.json", string(text)), "--out", out)
		svg, err := os.ReadFile(out)
		if err != nil || !strings.Contains(string(svg), "memory, bytes") || strings.Contains(string(svg), "NaN") {
			t.Errorf("%s: %v, %s", name, err, r.stdout)
		}
	}
}

// TestRematIsHelpful: each verb has help with an example that names a verb and flags that exist.
func TestRematIsHelpful(t *testing.T) {
	for _, verb := range []string{"solve", "explain", "compare", "curve", "check"} {
		help := must(t, "remat", verb, "--help").stdout
		if !strings.Contains(help, "Examples:\n  penstock remat "+verb+" ") && !strings.Contains(help, "penstock remat "+verb+" chain.json") {
			t.Errorf("%s has no example:\n%s", verb, help)
		}
	}
	if help := must(t, "remat").stdout; !strings.Contains(help, "solve") || !strings.Contains(help, `"forward_us"`) {
		t.Errorf("help:\n%s", help)
	}
}

// TestRematIsInterrupted: a signal ends each verb that takes time, and nothing is written.
func TestRematIsInterrupted(t *testing.T) {
	torchtest.Check(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir, chain := t.TempDir(), chainFile(t)
	for _, args := range [][]string{
		{"solve", chain, "--limit", "30MiB", "--out", filepath.Join(dir, "plan.json")},
		{"explain", chain, "--limit", "30MiB"},
		{"compare", chain},
		{"curve", chain, "--out", filepath.Join(dir, "curve.svg")},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(ctx, with([]string{"remat"}, args...), &stdout, &stderr); code != exitFailed || stdout.Len() > 0 || !strings.Contains(stderr.String(), "interrupted while") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, &stdout, &stderr)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestRematOfLongChains: those for which one table answers all limits.
func TestRematOfLongChains(t *testing.T) {
	c := rematChain()
	for len(c.Layers) <= longChain {
		c.Layers = append(c.Layers, c.Layers[:6]...)
	}
	text, err := planfile.FormatChain(c)
	if err != nil {
		t.Fatal(err)
	}
	var list []comparedLine
	decode(t, must(t, "remat", "compare", textFile(t, "chain.json", string(text)), "--format", "json").stdout, &list)
	for _, l := range list {
		if l.Gain < -0.01 || l.OptimumPeak > l.Peak {
			t.Errorf("%+v", l)
		}
	}
	if len(list) < 10 {
		t.Errorf("%d strategies", len(list))
	}
}
