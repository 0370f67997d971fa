package remat_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/remat"

	"penstock.example/remat/planfile"
)

func TestChainFileIsGolden(t *testing.T) {
	for name, c := range map[string]remat.Chain{"sample.json": sample(), "plain.json": plain(3, 2)} {
		text, err := planfile.FormatChain(c)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, string(text))
		got, err := planfile.ParseChain(text)
		if diff := cmp.Diff(c, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

func TestChainFileRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(6).Draw(t, "chain")
		c.Model, c.Rows, c.Threads = rapid.SampledFrom([]string{"", "gpt", "gpt depth=2"}).Draw(t, "model"), rapid.IntRange(0, 9).Draw(t, "rows"), rapid.IntRange(0, 9).Draw(t, "threads")
		c.Devices = rapid.IntRange(0, 9).Draw(t, "devices")
		text, err := planfile.FormatChain(c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := planfile.ParseChain(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatal(diff)
		}
		if again, err := planfile.FormatChain(got); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("%v: written again:\n%s\nbefore:\n%s", err, again, text)
		}
		if got.Fingerprint() != c.Fingerprint() {
			t.Fatal("another fingerprint")
		}
	})
}

// TestChainFileDefaults: what may be left out, and what it is then.
func TestChainFileDefaults(t *testing.T) {
	got, err := planfile.ParseChain([]byte(`{"loss":{"tmp_bytes":1,"backward_us":2},"layers":[{"name":"a","forward_us":3,"backward_us":4e0,"output_bytes":5,"saved_bytes":6,
		"forward_tmp_bytes":7,"backward_tmp_bytes":8}],"input_bytes":9,"version":1}`))
	if err != nil {
		t.Fatal(err)
	}
	want := remat.Chain{Input: 9, InputGradient: 9, Loss: remat.Loss{Backward: 2, Tmp: 1}, Layers: []remat.Layer{{Name: "a", Forward: 3, ForwardNoGrad: 3, Backward: 4, Output: 5, Saved: 6, ForwardTmp: 7, ForwardNoGradTmp: 7, BackwardTmp: 8, Gradient: 5}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

const (
	layerFields = `"name":"a","forward_us":3,"backward_us":4,"output_bytes":5,"saved_bytes":6,"forward_tmp_bytes":7,"backward_tmp_bytes":8`
	lossFields  = `"backward_us":2,"tmp_bytes":1`
)

// chainText is a file of one layer with these fields, and more fields of the chain.
func chainText(layer, loss, more string) string {
	return `{"version":1,"input_bytes":9,"layers":[{` + layer + `}],"loss":{` + loss + `}` + more + `}`
}

func TestChainFileRefuses(t *testing.T) {
	swap := func(old, new string) string {
		text := chainText(layerFields, lossFields, "")
		if strings.Count(text, old) != 1 {
			t.Fatalf("%d of %s in %s", strings.Count(text, old), old, text)
		}
		return strings.Replace(text, old, new, 1)
	}
	good := chainText(layerFields, lossFields, "")
	for _, test := range []struct {
		reason, text, path string
		want               []string
	}{
		{"empty", "", "", []string{"the file ends", "an object"}},
		{"spaces", " \n", "", []string{"the file ends"}},
		{"another type", "[]", "", []string{"an array", "an object"}},
		{"null", "null", "", []string{"null", "an object"}},
		{"no JSON", "version=1", "", []string{"invalid character 'v'"}},
		{"no UTF-8", "{\"\xff", "", []string{"0xff", "UTF-8"}},
		{"trailing value", good + "{}", "", []string{"an object follows the chain"}},
		{"trailing bracket", good + "]", "", []string{"follows"}},
		{"trailing zero", good + "\x00", "", []string{"follows"}},
		{"trailing comma", swap(`"tmp_bytes":1}`, `"tmp_bytes":1,}`), "loss", []string{"want"}},
		{"missing comma", swap(`3,"back`, `3 "back`), "layers[0]", []string{"invalid character"}},
		{"other version", swap(`"version":1`, `"version":2`), "version", []string{"version 2", "want 1"}},
		{"version as text", swap(`"version":1`, `"version":"1"`), "version", []string{`"1"`, "want the version, 1"}},
		{"version with a fraction", swap(`"version":1`, `"version":1.0`), "version", []string{"1.0"}},
		{"no version", swap(`"version":1,`, ``), "", []string{`"version" is missing`}},
		{"no layers", swap(`"layers":[{`+layerFields+`}],`, ``), "", []string{`"layers" is missing`}},
		{"no loss", swap(`,"loss":{`+lossFields+`}`, ``), "", []string{`"loss" is missing`}},
		{"no name", swap(`"name":"a",`, ``), "layers[0]", []string{`"name" is missing`}},
		{"no saved bytes", swap(`"saved_bytes":6,`, ``), "layers[0]", []string{`"saved_bytes" is missing`}},
		{"no time of the loss", swap(`"backward_us":2,`, ``), "loss", []string{`"backward_us" is missing`}},
		{"unknown field", chainText(layerFields, lossFields, `,"input":1`), "", []string{`unknown field "input"`, "input_bytes"}},
		{"unknown field of a layer", chainText(layerFields+`,"kind":"conv"`, lossFields, ""), "layers[0]", []string{`unknown field "kind"`, "forward_us"}},
		{"other case", swap(`"saved_bytes"`, `"Saved_Bytes"`), "layers[0]", []string{`unknown field "Saved_Bytes"`, `want "saved_bytes"`}},
		{"twice", chainText(layerFields+`,"name":"b"`, lossFields, ""), "layers[0]", []string{`"name" is there twice`}},
		{"twice, escaped", chainText(layerFields+`,"n\u0061me":"b"`, lossFields, ""), "layers[0]", []string{`"name" is there twice`}},
		{"twice in other case", chainText(layerFields+`,"NAME":"b"`, lossFields, ""), "layers[0]", []string{`unknown field "NAME"`}},
		{"twice at the top", chainText(layerFields, lossFields, `,"version":1`), "", []string{`"version" is there twice`}},
		{"NaN", swap(`"forward_us":3`, `"forward_us":NaN`), "layers[0].forward_us", []string{"'N'", "a time"}},
		{"Infinity", swap(`"forward_us":3`, `"forward_us":Infinity`), "layers[0].forward_us", []string{"'I'"}},
		{"-Infinity", swap(`"forward_us":3`, `"forward_us":-Infinity`), "layers[0].forward_us", []string{"'I'"}},
		{"NaN as text", swap(`"forward_us":3`, `"forward_us":"NaN"`), "layers[0].forward_us", []string{`"NaN"`}},
		{"overflow", swap(`"forward_us":3`, `"forward_us":1e999`), "layers[0].forward_us", []string{"1e999 is too large"}},
		{"too long a time", swap(`"forward_us":3`, `"forward_us":1e300`), "layers[0].forward_us", []string{"1e+300", "at most 1e+18"}},
		{"too long in sum", swap(`"forward_us":3`, `"forward_us":6e17`), "layers[0].forward_nograd_us", []string{"6e+17", "after 6e+17"}},
		{"negative time", swap(`"forward_us":3`, `"forward_us":-3`), "layers[0].forward_us", []string{"-3"}},
		{"null time", swap(`"forward_us":3`, `"forward_us":null`), "layers[0].forward_us", []string{"null"}},
		{"hexadecimal", swap(`"forward_us":3`, `"forward_us":0x3`), "layers[0]", []string{"'x'"}},
		{"leading zero", swap(`"forward_us":3`, `"forward_us":03`), "layers[0]", []string{"'3'"}},
		{"negative bytes", swap(`"output_bytes":5`, `"output_bytes":-5`), "layers[0].output_bytes", []string{"-5 bytes"}},
		{"bytes with a fraction", swap(`"output_bytes":5`, `"output_bytes":5.5`), "layers[0].output_bytes", []string{"5.5", "without a fraction"}},
		{"bytes with an exponent", swap(`"output_bytes":5`, `"output_bytes":5e3`), "layers[0].output_bytes", []string{"5e3"}},
		{"bytes above int64", swap(`"output_bytes":5`, `"output_bytes":9223372036854775808`), "layers[0].output_bytes", []string{"9223372036854775808"}},
		{"bytes as text", swap(`"output_bytes":5`, `"output_bytes":"5"`), "layers[0].output_bytes", []string{`"5"`}},
		{"bytes as an array", swap(`"output_bytes":5`, `"output_bytes":[5]`), "layers[0].output_bytes", []string{"an array"}},
		{"bytes as truth", swap(`"output_bytes":5`, `"output_bytes":true`), "layers[0].output_bytes", []string{"true"}},
		{"name as number", swap(`"name":"a"`, `"name":1`), "layers[0].name", []string{"1", "name"}},
		{"a long name for a number", swap(`"output_bytes":5`, `"output_bytes":"`+strings.Repeat("long", 99)+`"`), "layers[0].output_bytes", []string{"longlong…"}},
		{"saves less than the output", swap(`"saved_bytes":6`, `"saved_bytes":4`), "layers[0].saved_bytes", []string{"4 bytes", "output's 5"}},
		{"too large a sum", swap(`"input_bytes":9`, `"input_bytes":1152921504606846976`), "input_gradient_bytes", []string{"at most 1152921504606846976"}},
		{"layers of another type", swap(`[{`+layerFields+`}]`, `{}`), "layers", []string{"an object", "an array"}},
		{"a layer of another type", swap(`{`+layerFields+`}`, `7`), "layers[0]", []string{"7", "an object"}},
		{"empty chain", swap(`{`+layerFields+`}`, ``), "layers", []string{"none", "at least one"}},
		{"a carry from nowhere", chainText(layerFields, lossFields, `,"carries":[{"from":-2,"to":1,"bytes":1}]`), "carries[0].from", []string{"-2", "-1"}},
		{"a carry from behind the end", chainText(layerFields, lossFields, `,"carries":[{"from":1,"to":2,"bytes":1}]`), "carries[0].from", []string{"layer 1", "to 0"}},
		{"a carry beyond the end", chainText(layerFields, lossFields, `,"carries":[{"from":-1,"to":2,"bytes":1}]`), "carries[0].to", []string{"2, from -1", "0 to 1"}},
		{"a carry backwards", chainText(layerFields, lossFields, `,"carries":[{"from":0,"to":0,"bytes":1}]`), "carries[0].to", []string{"0, from 0", "1 to 1"}},
		{"a carry beyond all layers", chainText(layerFields, lossFields, `,"carries":[{"from":0,"to":9223372036854775807,"bytes":1}]`), "carries[0].to", []string{"1 to 1"}},
		{"a carry larger than the input", chainText(layerFields, lossFields, `,"carries":[{"from":-1,"to":1,"bytes":10}]`), "carries[0].bytes", []string{"10 bytes", "of the 9"}},
		{"carries that are too large in sum", chainText(layerFields, lossFields, `,"carries":[{"from":0,"to":1,"bytes":3},{"from":0,"to":1,"bytes":3}]`), "carries[1].bytes", []string{"3 bytes, after 3", "of the 5"}},
		{"a gradient larger than its maker's", chainText(layerFields, lossFields, `,"gradient_carries":[{"from":-1,"to":1,"bytes":6}]`), "gradient_carries[0].bytes", []string{"of the 5"}},
		{"negative carry", chainText(layerFields, lossFields, `,"carries":[{"from":0,"to":1,"bytes":-1}]`), "carries[0].bytes", []string{"-1 bytes"}},
		{"a carry without bytes", chainText(layerFields, lossFields, `,"carries":[{"from":0,"to":1}]`), "carries[0]", []string{`"bytes" is missing`}},
	} {
		c, err := planfile.ParseChain([]byte(test.text))
		path, reason := where(t, err)
		if path != test.path {
			t.Errorf("%s: path %q, want %q: %v", test.reason, path, test.path, err)
		}
		for _, want := range test.want {
			if !strings.Contains(reason, want) {
				t.Errorf("%s: no %q in %v", test.reason, want, err)
			}
		}
		if c.Layers != nil {
			t.Errorf("%s: there is a chain", test.reason)
		}
	}
}

// where is what an error of a file says.
func where(t *testing.T, err error) (path, reason string) {
	t.Helper()
	var syntax *planfile.SyntaxError
	var chain *remat.ChainError
	switch {
	case errors.As(err, &syntax):
		path, reason = syntax.Path, syntax.Reason
	case errors.As(err, &chain):
		path, reason = chain.Path, chain.Reason
	default:
		t.Errorf("error %v", err)
		return "", ""
	}
	if text := err.Error(); !strings.HasPrefix(text, "remat: ") || !strings.Contains(text, path) || !strings.HasSuffix(text, reason) || strings.Contains(text, "\n") {
		t.Errorf("the error %q has not its path %q and reason %q", text, path, reason)
	}
	return path, reason
}

// TestChainFileTruncated: no beginning of a file is a file.
func TestChainFileTruncated(t *testing.T) {
	whole, err := planfile.FormatChain(sample())
	if err != nil {
		t.Fatal(err)
	}
	whole = bytes.TrimSpace(whole)
	for n := range whole {
		if _, err := planfile.ParseChain(whole[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are read without an error", n, len(whole))
		}
	}
}

// TestChainCheck: chains that no file can have.
func TestChainCheck(t *testing.T) {
	for _, test := range []struct {
		reason, path string
		spoil        func(*remat.Chain)
	}{
		{"NaN", "layers[1].forward_us", func(c *remat.Chain) { c.Layers[1].Forward = math.NaN() }},
		{"infinite", "layers[2].backward_us", func(c *remat.Chain) { c.Layers[2].Backward = math.Inf(1) }},
		{"minus infinite", "loss.backward_us", func(c *remat.Chain) { c.Loss.Backward = math.Inf(-1) }},
		{"name", "layers[0].name", func(c *remat.Chain) { c.Layers[0].Name = "\xff" }},
		{"name that a terminal would obey", "layers[0].name", func(c *remat.Chain) { c.Layers[0].Name = "\x1b[2J" }},
		{"name of two lines", "layers[0].name", func(c *remat.Chain) { c.Layers[0].Name = "a\nb" }},
		{"sum that would be negative", "layers[0].weight_gradient_bytes", func(c *remat.Chain) { c.Layers[0].WeightGradient = math.MaxInt64 }},
		{"negative temporary", "layers[3].forward_nograd_tmp_bytes", func(c *remat.Chain) { c.Layers[3].ForwardNoGradTmp = -1 }},
		{"negative temporary of the loss", "loss.tmp_bytes", func(c *remat.Chain) { c.Loss.Tmp = math.MinInt64 }},
		{"negative gradient of the input", "input_gradient_bytes", func(c *remat.Chain) { c.InputGradient = -1 }},
		{"no layers", "layers", func(c *remat.Chain) { c.Layers = nil }},
		{"a carry that is too large", "carries[0].bytes", func(c *remat.Chain) { c.Carries[0].Bytes = math.MaxInt64 }},
		{"a gradient of nothing", "gradient_carries[0].to", func(c *remat.Chain) { c.GradientCarries[0].To = 6 }},
	} {
		c := sample()
		test.spoil(&c)
		if path, _ := where(t, c.Check()); path != test.path {
			t.Errorf("%s: path %q, want %q", test.reason, path, test.path)
		}
		if _, err := planfile.FormatChain(c); err == nil {
			t.Errorf("%s: it is written", test.reason)
		}
		if _, err := remat.Check(c, nil); err == nil {
			t.Errorf("%s: it is checked", test.reason)
		}
	}
	if err := sample().Check(); err != nil {
		t.Error(err)
	}
}

// TestFingerprint: everything that the peak or the meaning of a plan hangs on counts, times and the order of carries do not.
func TestFingerprint(t *testing.T) {
	want := sample().Fingerprint()
	if strings.Trim(want, "0123456789abcdef") != "" || len(want) != 32 {
		t.Errorf("fingerprint %q", want)
	}
	for reason, change := range map[string]func(*remat.Chain){
		"time":             func(c *remat.Chain) { c.Layers[1].Forward, c.Loss.Backward = 99, 99 },
		"order of carries": func(c *remat.Chain) { c.Carries[0], c.Carries[1] = c.Carries[1], c.Carries[0] },
	} {
		c := sample()
		change(&c)
		if c.Fingerprint() != want {
			t.Errorf("%s changes the fingerprint", reason)
		}
	}
	seen := map[string]string{want: "nothing"}
	for reason, change := range map[string]func(*remat.Chain){
		"input":             func(c *remat.Chain) { c.Input++ },
		"input gradient":    func(c *remat.Chain) { c.InputGradient++ },
		"name":              func(c *remat.Chain) { c.Layers[0].Name = "conv1" },
		"names, shifted":    func(c *remat.Chain) { c.Layers[0].Name, c.Layers[1].Name = "convr", "elu" },
		"output":            func(c *remat.Chain) { c.Layers[2].Output++ },
		"saved":             func(c *remat.Chain) { c.Layers[2].Saved++ },
		"temporary":         func(c *remat.Chain) { c.Layers[2].ForwardTmp++ },
		"temporary no grad": func(c *remat.Chain) { c.Layers[2].ForwardNoGradTmp++ },
		"temporary back":    func(c *remat.Chain) { c.Layers[2].BackwardTmp++ },
		"gradient":          func(c *remat.Chain) { c.Layers[2].Gradient++ },
		"weights":           func(c *remat.Chain) { c.Layers[2].WeightGradient++ },
		"loss":              func(c *remat.Chain) { c.Loss.Tmp++ },
		"carry":             func(c *remat.Chain) { c.Carries[0].To-- },
		"no carries":        func(c *remat.Chain) { c.Carries = nil },
		"gradient carry":    func(c *remat.Chain) { c.GradientCarries[0].Bytes-- },
		"carries swapped":   func(c *remat.Chain) { c.Carries, c.GradientCarries = c.GradientCarries, c.Carries },
		"a layer less":      func(c *remat.Chain) { c.Layers = c.Layers[:4] },
	} {
		c := sample()
		change(&c)
		got := c.Fingerprint()
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the fingerprint of %s", reason, other)
		}
		seen[got] = reason
	}
}
