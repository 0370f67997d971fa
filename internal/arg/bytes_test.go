package arg_test

import (
	"testing"

	"penstock.example/internal/arg"
)

func TestSizes(t *testing.T) {
	for n, want := range map[int64][2]string{
		0: {"0 B", "0 bytes"}, 1023: {"1023 B", "1023 bytes"}, 1 << 10: {"1.0 KiB", "1024 bytes (1.0 KiB)"},
		3 << 19: {"1.5 MiB", "1572864 bytes (1.5 MiB)"}, 5 << 40: {"5120.0 GiB", "5497558138880 bytes (5120.0 GiB)"},
	} {
		if got := [2]string{arg.Bytes(n), arg.Size(n)}; got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1048576": 1 << 20, "512MiB": 512 << 20, "1.5GiB": 3 << 29, "512MB": 512e6, "2 kib": 2048, "7B": 7, "1TB": 1e12, ".5KiB": 512, "1.9": 1,
	} {
		if got, err := arg.ParseBytes(s); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "MiB", "-1", "+1", "1e3", "0x10", "1_000", "1.2.3", "5 apples", "512M", "NaN", "Inf", "1MiB1", "9999999TiB", "."} {
		if got, err := arg.ParseBytes(s); err == nil {
			t.Errorf("%q: got %d", s, got)
		}
	}
}
