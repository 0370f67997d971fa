package command

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"penstock.example/models"
)

// listed is the JSON of penstock models.
func listed(t *testing.T, args ...string) (list []modelLine) {
	t.Helper()
	if err := json.Unmarshal([]byte(must(t,
		with([]string{"models", "--format", "json"}, args...)...).stdout), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestModels(t *testing.T) {
	var names []string
	for _, m := range listed(t) {
		names = append(names, m.Name)
	}
	if !slices.Equal(names, models.Names()) {
		t.Errorf("got %q, want %q", names, models.Names())
	}
	// columns are as wide as the longest name
	text := strings.Join(strings.Fields(must(t, "models").stdout), " ")
	if !strings.Contains(text, "unet 285 362157516 B=6,C=72,") {
		t.Error(text)
	}
	for _, tt := range []struct {
		args               []string
		layers             int
		parameters         int64
		first, last, other layerLine
		option             string
		value              float64
	}{
		// He et al. 2015, table 6: 0.27 M parameters, here with projections. The stem, nine blocks,
		// and the head are 11 layers.
		{[]string{"resnet20"}, 11, 272474, layerLine{"stem", 464}, layerLine{"head", 650},
			layerLine{"layer1.0", 4672}, "width", 16},
		{[]string{"unet", "--set", "B=48", "--set", "C=160,dropout=0"}, 2133, 15822206000,
			layerLine{"encoder.0.encode.0.conv", 4320}, layerLine{"segment",
				80}, layerLine{"decoder.4.skip", 0}, "dropout", 0},
		{[]string{"amoebanetd", "--set", "L=72,D=512"}, 78, 1844858344, layerLine{"stem1", 3712},
			layerLine{"classify", 8193000},
			layerLine{"cell2_reduction", 7811584}, "L", 72},
		// the head's weight is embed's
		{[]string{"gpt"}, 58, 842496, layerLine{"embed", 49152}, layerLine{"head", 256},
			layerLine{"blocks.0.attn.qkv", 49536}, "depth", 4},
	} {
		list := listed(t, tt.args...)
		if len(list) != 1 {
			t.Fatalf("%q: %d models", tt.args, len(list))
		}
		got := list[0]
		if n := len(got.Each); got.Layers != tt.layers || n != tt.layers ||
			got.Parameters != tt.parameters || got.Args[tt.option] != tt.value ||
			got.Each[0] != tt.first || got.Each[n-1] != tt.last || !slices.Contains(got.Each, tt.other) {
			t.Errorf("%q: %+v", tt.args, got)
		}
	}
	text = must(t, "models", "unet", "--set", "B=1,C=4,depth=1").stdout
	for _, want := range []string{"unet: U-Net of 5 levels",
		"\nB=1,C=4,classes=1,channels=3,size=192,depth=1,dropout=0.1\n",
		"\nencoder.0.encode.0.conv     Conv2d     108         432    weight [4 3 3 3]\n",
		"\n                            17 layers  398         1592\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
