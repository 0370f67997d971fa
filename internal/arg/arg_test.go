package arg_test

import (
	"testing"

	"penstock.example/internal/arg"
)

func TestSizes(t *testing.T) {
	for n, want := range map[int64][2]string{
		0: {"0 B", "0 bytes"}, 1023: {"1023 B", "1023 bytes"}, 3 << 19: {"1.5 MiB",
			"1572864 bytes (1.5 MiB)"},
	} {
		if got := [2]string{arg.Bytes(n), arg.Size(n)}; got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for s, want := range map[string]int64{
		"0": 0, "1048576": 1 << 20, "512MiB": 512 << 20, "1.5GiB": 3 << 29, "512MB": 512e6, "2 kib": 2048,
		".5KiB": 512,
	} {
		if got, err := arg.ParseBytes(s); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "MiB", "-1", "1e3", "0x10", "1.2.3", "5 apples", "NaN", "9999999TiB"} {
		if got, err := arg.ParseBytes(s); err == nil {
			t.Errorf("%q: got %d", s, got)
		}
	}
}

func TestNearest(t *testing.T) {
	models := []string{"mlp", "resnet20", "resnet200", "gpt", "densenet121"}
	for word, want := range map[string]string{"ResNt20": "resnet20", "mpl": "mlp", "": "", "x": "",
		"transformer": ""} {
		if got := arg.Nearest(word, models); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestNumbered(t *testing.T) {
	for want, numbers := range map[string][]int{"": nil, "rank 3": {3}, "ranks 3 and 5": {3, 5},
		"ranks 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 and 4 more": make([]int, 20)} {
		if got := arg.Numbered("rank", numbers); got != want {
			t.Errorf("%v: %q; want %q", numbers, got, want)
		}
	}
}
