package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
)

func TestChoose(t *testing.T) {
	for _, row := range []struct {
		reason, list string
		want         []string
	}{
		{"all but what --devices is for", "", parts()[:len(parts())-1]},
		{"that", devicesPart, []string{"devices"}},
		{"one", "unet", []string{"unet"}},
		{"several", "mlp,ablation,cell", []string{"mlp", "ablation", "cell"}},
		{"unknown", "unet,vgg", nil},
		{"empty", "unet,", nil},
	} {
		got, err := choose(row.list)
		if !slices.Equal(got, row.want) || (err == nil) != (row.want != nil) {
			t.Errorf("%s: got %v, %v", row.reason, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "resnet50") {
			t.Errorf("%s: %v does not say what there is", row.reason, err)
		}
	}
}

func TestPartsAreNamedOnce(t *testing.T) {
	list := slices.Sorted(slices.Values(parts()))
	if len(slices.Compact(slices.Clone(list))) != len(list) {
		t.Errorf("got %v", list)
	}
}

// A run of chosen parts measures those and nothing else.
func TestRunOnly(t *testing.T) {
	torchtest.Check(t)
	var b strings.Builder
	if err := run(context.Background(), selection{cellPart}, effort{blocks: 1}, "text", opponents{}, &b); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); !strings.Contains(text, "us for each stage and micro-batch") || strings.Contains(text, "GFLOP/s") || strings.Contains(text, "workload") {
		t.Errorf("got\n%s", text)
	}
}

func TestRunRefusesWhatIsNoCheckout(t *testing.T) {
	err := run(context.Background(), selection{cellPart}, effort{blocks: 1}, "text", opponents{torchgpipe: t.TempDir()}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "is not a torchgpipe checkout") {
		t.Errorf("got %v", err)
	}
}
