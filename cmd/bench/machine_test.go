package main

import (
	"runtime"
	"slices"
	"testing"
)

func TestParseCores(t *testing.T) {
	for _, row := range []struct {
		list string
		want []int
	}{{"0", []int{0}}, {"0-1", []int{0, 1}}, {"2-3,8,10-11", []int{2, 3, 8, 10, 11}}, {"", nil}, {"0-", nil}, {"all", nil}} {
		if got := parseCores(row.list); !slices.Equal(got, row.want) {
			t.Errorf("%q: got %v, want %v", row.list, got, row.want)
		}
	}
}

func TestParseCPU(t *testing.T) {
	const intel = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Processor\nstepping\t: 2\n\nprocessor\t: 1\nmodel\t\t: 9\n"
	for _, row := range []struct{ text, want string }{
		{intel, "Intel(R) Xeon(R) Processor (family 6, model 207, stepping 2)"},
		{"processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0c\n", runtime.GOARCH},
		{"", runtime.GOARCH},
	} {
		if got := parseCPU(row.text); got != row.want {
			t.Errorf("%q: got %q, want %q", row.text, got, row.want)
		}
	}
}

func TestVariantsBindOnlyToKnownCores(t *testing.T) {
	if with, without := len(variants(nil, []int{3, 5})), len(variants(nil, nil)); with != without+1 {
		t.Errorf("%d variants with cores, %d without", with, without)
	}
}
