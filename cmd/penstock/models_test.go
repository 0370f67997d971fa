package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/models"
)

func TestModelsLists(t *testing.T) {
	type entry struct {
		Name       string
		Args       map[string]float64
		Layers     int
		Parameters int64
	}
	var list []entry
	decoder := json.NewDecoder(strings.NewReader(must(t, "models", "--format", "json").stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	if !slices.Equal(names, models.Names()) {
		t.Errorf("got %q, want %q", names, models.Names())
	}
	text := must(t, "models").stdout
	for _, want := range []entry{
		// He et al. 2015, table 6: 0.27 M parameters, here with projections. The stem, nine blocks,
		// and the head are 11 layers.
		{"resnet20", map[string]float64{"classes": 10, "channels": 3, "size": 32, "width": 16}, 11, 272474},
		{"resnet101", map[string]float64{"classes": 1000, "channels": 3, "size": 224}, 370, 44549160},
		{"amoebanetd", map[string]float64{"L": 18, "D": 208, "classes": 1000, "channels": 3, "size": 224}, 24, 81505540},
		{"unet", map[string]float64{"B": 6, "C": 72, "depth": 5, "classes": 1, "channels": 3, "size": 192, "dropout": 0.1}, 285, 362157516},
	} {
		i := slices.Index(names, want.Name)
		if diff := cmp.Diff(want, list[i]); diff != "" {
			t.Error(diff)
		}
	}
	words := strings.Join(strings.Fields(text), " ") // columns are as wide as the longest name
	for _, want := range []string{"unet 285 362157516 ", "B=6,C=72,", "L=18,D=208,"} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

func TestModelsDescribesOne(t *testing.T) {
	for _, tt := range []struct {
		args               []string
		layers             int
		parameters         int64
		first, last, other layerLine
		want               map[string]any
	}{
		{[]string{"resnet20"}, 11, 272474, layerLine{"stem", 464}, layerLine{"head", 650}, layerLine{"layer1.0", 4672}, map[string]any{"width": 16.0}},
		{[]string{"unet", "--set", "B=5,C=64"}, 241, 232687328,
			layerLine{"encoder.0.encode.0.conv", 1728}, layerLine{"segment", 32}, layerLine{"encoder.0.skip", 0}, map[string]any{"B": 5.0, "C": 64.0, "depth": 5.0}},
		{[]string{"unet", "--set", "B=48", "--set", "C=160,dropout=0"}, 2133, 15822206000,
			layerLine{"encoder.0.encode.0.conv", 4320}, layerLine{"segment", 80}, layerLine{"decoder.4.skip", 0}, map[string]any{"B": 48.0, "C": 160.0, "dropout": 0.0}},
		{[]string{"amoebanetd", "--set", "L=72,D=512"}, 78, 1844858344, layerLine{"stem1", 3712}, layerLine{"classify", 8193000}, layerLine{"cell2_reduction", 7811584}, map[string]any{"L": 72.0}},
		// the head's weight is embed's
		{[]string{"gpt"}, 58, 842496, layerLine{"embed", 49152}, layerLine{"head", 256}, layerLine{"blocks.0.attn.qkv", 49536}, map[string]any{"dropout": 0.0}},
	} {
		var list []modelLine
		if err := json.Unmarshal([]byte(must(t, append([]string{"models", "--format", "json"}, tt.args...)...).stdout), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 {
			t.Fatalf("%q: %d models", tt.args, len(list))
		}
		got := list[0]
		var sum int64
		for _, l := range got.Each {
			sum += l.Parameters
		}
		if got.Name != tt.args[0] || got.Layers != tt.layers || len(got.Each) != tt.layers || got.Parameters != tt.parameters || sum != tt.parameters {
			t.Errorf("%q: %s has %d layers, %d listed, and %d parameters, %d in all layers; want %d and %d", tt.args, got.Name, got.Layers, len(got.Each), got.Parameters, sum, tt.layers, tt.parameters)
		}
		if got.Each[0] != tt.first || got.Each[len(got.Each)-1] != tt.last || !slices.Contains(got.Each, tt.other) {
			t.Errorf("%q: layers from %v to %v, want %v to %v and %v among them", tt.args, got.Each[0], got.Each[len(got.Each)-1], tt.first, tt.last, tt.other)
		}
		for name, want := range tt.want {
			if got.Args[name] != want {
				t.Errorf("%q: %s is %v, want %v", tt.args, name, got.Args[name], want)
			}
		}
	}
}

func TestModelsDescribesOneInText(t *testing.T) {
	want := `unet: U-Net of 5 levels with B convolutions each, the first of C channels
(Ronneberger et al. 2015; Kim et al. 2020)
B=1,C=4,classes=1,channels=3,size=192,depth=1,dropout=0.1

LAYER                       TYPE            PARAMETERS  BYTES  SHAPES
encoder.0.encode.0.conv     Conv2d          108         432    weight [4 3 3 3]
encoder.0.encode.0.dropout  Dropout2d       0           0
encoder.0.encode.0.norm     InstanceNorm2d  0           0
encoder.0.encode.0.relu     LeakyReLU       0           0
encoder.0.skip              Stash           0           0
encoder.0.down              MaxPool2d       0           0
bottleneck.0.0.conv         Conv2d          144         576    weight [4 4 3 3]
bottleneck.0.0.dropout      Dropout2d       0           0
bottleneck.0.0.norm         InstanceNorm2d  0           0
bottleneck.0.0.relu         LeakyReLU       0           0
decoder.0.up                Upsample        0           0
decoder.0.skip              concat          0           0
decoder.0.decode.0.conv     Conv2d          144         576    weight [2 8 3 3]
decoder.0.decode.0.dropout  Dropout2d       0           0
decoder.0.decode.0.norm     InstanceNorm2d  0           0
decoder.0.decode.0.relu     LeakyReLU       0           0
segment                     Conv2d          2           8      weight [1 2 1 1]
                            17 layers       398         1592
`
	if diff := cmp.Diff(want, must(t, "models", "unet", "--set", "B=1,C=4,depth=1").stdout); diff != "" {
		t.Error(diff)
	}
}
