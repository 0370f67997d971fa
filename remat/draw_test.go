package remat_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"penstock.example/remat"
)

func TestDrawIsGolden(t *testing.T) {
	long := plain(70, 4)
	eight, err := remat.Sequential(70, 8)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		chain  remat.Chain
		ops    []remat.Op
		config remat.DrawConfig
	}{
		"draw_sample.txt":   {sample(), parseOps(t, "K0 F1 F2 F3 F4 L S0 K1 F2 F3 S4 B4 K1 F2 S3 B3 K1 S2 B2 S1 B1 B0"), remat.DrawConfig{}},
		"draw_segments.txt": {long, eight, remat.DrawConfig{Width: 80, Rows: 20}},
		"draw_all.txt":      {long, remat.All(70), remat.DrawConfig{Width: 120}},
	} {
		text, err := remat.Draw(test.chain, test.ops, test.config)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, text)
	}
}

// TestDrawFits: whatever the chain, no line is too long and no row too many.
func TestDrawFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(9).Draw(t, "chain")
		d := remat.DrawConfig{Width: rapid.IntRange(40, 120).Draw(t, "width"), Rows: rapid.IntRange(1, 10).Draw(t, "rows")}
		n := len(c.Layers)
		ops := rapid.SampledFrom([][]remat.Op{remat.None(n), remat.All(n), segments(n)}).Draw(t, "ops")
		text, err := remat.Draw(c, ops, d)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > 3+d.Rows {
			t.Fatalf("%d lines for %d rows", len(lines), d.Rows)
		}
		for _, line := range lines[1:] {
			if utf8.RuneCountInString(line) > d.Width {
				t.Fatalf("%d characters for %d: %q", utf8.RuneCountInString(line), d.Width, line)
			}
		}
		if memory := lines[len(lines)-1]; !strings.Contains(memory, "X") && !strings.Contains(memory, "0") {
			t.Fatalf("the peak is not to be seen: %q", memory)
		}
	})
}
