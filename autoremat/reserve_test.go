package autoremat_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"penstock.example/autoremat"
)

// free is what the machine has free for programs, in bytes.
func free(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "MemAvailable:")
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestALimitOfWhatIsFreeKeepsAReserve: the default limit leaves a reserve, as the process takes
// more than the account counts.
func TestALimitOfWhatIsFreeKeepsAReserve(t *testing.T) {
	var limit int64
	b := newFixture(t, mlp().model(), autoremat.Config{Report: func(r autoremat.Report) { limit = r.Limit }})
	most := free(t)
	if err := b.step(b.normal(16, 20)); err != nil {
		t.Fatal(err)
	}
	b.m.Close()
	// Other programs may come and go meanwhile.
	if most = max(most, free(t)); limit > most-most/20 || limit < 1 {
		t.Errorf("the limit is %d, and %d bytes are free", limit, most)
	}
}

func TestReserve(t *testing.T) {
	for _, tt := range []struct {
		free, want int64
		reason     string
	}{
		{64 << 30, 64 << 30 / 10, "a tenth"},
		{640 << 20, 64 << 20, "a tenth, which is the least"},
		{200 << 20, 64 << 20, "the least"},
		{100 << 20, 50 << 20, "half of what there is"},
		{0, 0, "nothing is free"},
	} {
		if got := autoremat.ReserveOf(tt.free); got != tt.want {
			t.Errorf("of %d bytes %d are reserved, want %d: %s", tt.free, got, tt.want, tt.reason)
		}
	}
}
