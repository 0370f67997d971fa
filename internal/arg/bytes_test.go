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
