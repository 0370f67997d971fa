package models_test

import (
	"testing"

	"penstock.example/models"
	"penstock.example/nn"
)

// The rows of the tables of torchgpipe's benchmarks and of GPipe's table 1: layers that a balance
// divides and parameters, both counted exactly on torchgpipe's own models, which publish them
// rounded to three digits.
func TestSizesOfTheBenchmarks(t *testing.T) {
	unet := func(b, c int) models.Options { return models.Options{Convolutions: b, Width: c} }
	amoebanet := func(l, d int) models.Options { return models.Options{Depth: l, Width: d} }
	for _, row := range []struct {
		model     string
		o         models.Options
		layers    int
		params    int64
		published string
	}{
		{"unet", unet(5, 64), 241, 232687328, "241 layers"},
		{"unet", unet(6, 72), 285, 362157516, "362.2M"},
		{"unet", unet(11, 128), 505, 2213834176, "505 layers, 2.21B"},
		{"unet", unet(24, 128), 1077, 4993859008, "1077 layers, 4.99B"},
		{"unet", unet(24, 160), 1077, 7802903600, "1077 layers, 7.80B"},
		{"unet", unet(48, 160), 2133, 15822206000, "2133 layers, 15.82B"},
		{"amoebanetd", amoebanet(18, 208), 24, 81505540, "24 layers, 81.5M"},
		{"amoebanetd", amoebanet(18, 256), 24, 122470120, "24 layers"},
		{"amoebanetd", amoebanet(18, 416), 24, 319024120, "319.0M"},
		{"amoebanetd", amoebanet(18, 544), 24, 542734840, "542.7M"},
		{"amoebanetd", amoebanet(36, 544), 42, 1055832376, "42 layers, 1.06B"},
		{"amoebanetd", amoebanet(72, 512), 78, 1844858344, "78 layers, 1.84B"},
		{"resnet101", models.Options{}, 370, 44549160, "370 layers"},
	} {
		s := build(t, row.model, row.o)
		if l, n := len(s.Layers()), nn.Count(s); l != row.layers || n != row.params {
			t.Errorf("%s %+v has %d layers and %d parameters, want %d and %d (%s)", row.model, row.o, l, n, row.layers, row.params, row.published)
		}
	}
}

// Parameters of each layer with some, in order, of torchgpipe's amoebanetd(num_layers=18,
// num_filters=208) and unet(num_convs=5, base_channels=64).
func TestSizesOfTheBenchmarksLayers(t *testing.T) {
	for _, row := range []struct {
		model string
		o     models.Options
		want  []int64
	}{
		{"amoebanetd", models.Options{Depth: 18, Width: 208}, amoebanet18x208},
		{"unet", models.Options{Convolutions: 5, Width: 64}, unet5x64},
	} {
		i := 0
		for _, l := range build(t, row.model, row.o).Layers() {
			n := nn.Count(l.Layer)
			if n == 0 {
				continue
			}
			if i >= len(row.want) || n != row.want[i] {
				t.Errorf("%s: %s, number %d of those with parameters, has %d", row.model, l.Name, i, n)
			}
			i++
		}
		if i != len(row.want) {
			t.Errorf("%s: %d layers have parameters, want %d", row.model, i, len(row.want))
		}
	}
}

var (
	amoebanet18x208 = []int64{
		1508, 49296, 227032, 446992, 555152, 598416, 598416, 598416, 598416, 1292304,
		1867424, 2213536, 2386592, 2386592, 2386592, 2386592, 5158816, 7455552, 8840000, 9532224,
		9532224, 9532224, 9532224, 3329000,
	}
	unet5x64 = []int64{
		1728, 36864, 36864, 36864, 36864, 73728, 147456, 147456, 147456, 147456,
		294912, 589824, 589824, 589824, 589824, 1179648, 2359296, 2359296, 2359296, 2359296,
		4718592, 9437184, 9437184, 9437184, 9437184, 18874368, 37748736, 37748736, 37748736, 18874368,
		9437184, 2359296, 2359296, 2359296, 2359296, 2359296, 589824, 589824, 589824, 589824,
		589824, 147456, 147456, 147456, 147456, 147456, 36864, 36864, 36864, 36864,
		36864, 9216, 9216, 9216, 9216, 32,
	}
)
