package models_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/models"
	"penstock.example/nn"
)

// The counts of resnet18 and up are torchvision's. Those of the networks for small images are the
// paper's 0.27, 0.46, 0.66 and 0.85 million with option A, plus 2752 for the two projections.
func TestSizes(t *testing.T) {
	for _, row := range []struct {
		name         string
		params       int64
		state        int // parameters and buffers: the entries of torchvision's state_dict
		layers       int
		lastOfLayers string
	}{
		{"vit_b_16", 86567656, 152, 138 + 12*len(attention()), "heads.head"},
		{"vit_b_32", 88224232, 152, 138 + 12*len(attention()), "heads.head"},
		{"vit_l_16", 304326632, 296, 270 + 24*len(attention()), "heads.head"},
		{"vit_l_32", 306535400, 296, 270 + 24*len(attention()), "heads.head"},
		{"gpt2", 124439808, 148, 209, "lm_head"}, // as Hugging Face counts them
		{"gpt2-medium", 354823168, 292, 413, "lm_head"},
		{"gpt2-large", 774030080, 436, 617, "lm_head"},
		{"gpt2-xl", 1557611200, 580, 821, "lm_head"},
		{"mlp", 784*256 + 256 + 256*256 + 256 + 256*10 + 10, 6, 6, "fc"},
		{"resnet20", 269722 + 2752, 0, 11, "head"},
		{"resnet32", 464154 + 2752, 0, 17, "head"},
		{"resnet44", 658586 + 2752, 0, 23, "head"},
		{"resnet56", 853018 + 2752, 0, 29, "head"},
		{"resnet18", 11689512, 122, 71, "fc"},
		{"resnet34", 21797672, 218, 135, "fc"},
		{"resnet50", 25557032, 320, 183, "fc"},
		{"resnet101", 44549160, 626, 370, "fc"}, // torchgpipe's benchmark divides as many layers
		{"resnet152", 60192808, 932, 557, "fc"},
		{"resnet200", 64673832, 1220, 733, "fc"},
		// 623 MiB and 339 layers in the measurements of rotor's authors
		{"resnet1001", 163401498, 0, 339, "fc"},
		{"resnext50_32x4d", 25028904, 320, 183, "fc"},
		{"resnext101_32x8d", 88791336, 626, 370, "fc"},
		{"wide_resnet50_2", 68883240, 320, 183, "fc"},
		{"wide_resnet101_2", 126886696, 626, 370, "fc"},
		{"vgg11", 132863336, 22, 30, "classifier.6"},
		{"vgg11_bn", 132868840, 62, 38, "classifier.6"},
		{"vgg13", 133047848, 26, 34, "classifier.6"},
		{"vgg13_bn", 133053736, 76, 44, "classifier.6"},
		{"vgg16", 138357544, 32, 40, "classifier.6"},
		{"vgg16_bn", 138365992, 97, 53, "classifier.6"},
		{"vgg19", 143667240, 38, 46, "classifier.6"},
		{"vgg19_bn", 143678248, 118, 62, "classifier.6"},
		{"densenet121", 7978856, 727, 79, "classifier"}, // 58 dense layers
		{"densenet161", 28681000, 967, 99, "classifier"},
		{"densenet169", 14149480, 1015, 103, "classifier"},
		{"densenet201", 20013928, 1207, 119, "classifier"},
		// three layers for each of five convolutions, two pools, eleven blocks, four at the end
		{"inception_v3", 23834568, 566, 32, "fc"},
		{"googlenet", 6624904, 344, 26, "fc"},
		// Blocks have 12 width^2 + 13 width; the head's weight is the tokens' embedding.
		{"gpt", 256*128 + 128*128 + 4*(12*128*128+13*128) + 2*128, 52, 46 + 4*len(attention()), "head"},
	} {
		s := build(t, row.name, models.Options{})
		if n := nn.Count(s); n != row.params {
			t.Errorf("%s has %d parameters, want %d", row.name, n, row.params)
		}
		if n := len(nn.State(s)); row.state != 0 && n != row.state {
			t.Errorf("%s has %d tensors, want %d", row.name, n, row.state)
		}
		l := s.Layers()
		if len(l) != row.layers || l[len(l)-1].Name != row.lastOfLayers {
			t.Errorf("%s has %d layers up to %s, want %d up to %s", row.name, len(l), l[len(l)-1].Name,
				row.layers, row.lastOfLayers)
		}
	}
}

// A balance of resnet20 counts these, so a change here breaks what users have written down.
func TestLayersOfResNet20(t *testing.T) {
	var names []string
	for _, l := range build(t, "resnet20", models.Options{}).Layers() {
		names = append(names, l.Name)
	}
	want := "stem layer1.0 layer1.1 layer1.2 layer2.0 layer2.1 layer2.2 layer3.0 layer3.1 layer3.2 head"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// attention lists the layers of the attention of a block of gpt, which an old libtorch has in parts.
func attention() (names []string) {
	for _, l := range nn.NewDotProductAttention(4, 1, true, 0) {
		names = append(names, "blocks.0.attn."+l.Name)
	}
	return names
}

// Parameters lie in files under their names, dropout draws by its own, and a balance counts layers.
func TestLayersOfAGPTBlock(t *testing.T) {
	var names, state []string
	for _, l := range build(t, "gpt", models.Options{Depth: 1, Dropout: 0.1}).Layers() {
		names = append(names, l.Name)
		for _, p := range l.State() {
			state = append(state, p.Name)
		}
	}
	want := `embed blocks.0.skip1 blocks.0.ln1 blocks.0.attn.qkv ` + strings.Join(attention(), " ") + ` blocks.0.attn.proj blocks.0.drop1 blocks.0.add1
		blocks.0.skip2 blocks.0.ln2 blocks.0.mlp.0 blocks.0.mlp.1 blocks.0.mlp.2 blocks.0.drop2 blocks.0.add2 head`
	if !slices.Equal(names, strings.Fields(want)) {
		t.Errorf("layers are %s", names)
	}
	want = `embed.position embed.token.weight blocks.0.ln1.weight blocks.0.ln1.bias blocks.0.attn.qkv.weight blocks.0.attn.qkv.bias blocks.0.attn.proj.weight blocks.0.attn.proj.bias
		blocks.0.ln2.weight blocks.0.ln2.bias blocks.0.mlp.0.weight blocks.0.mlp.0.bias blocks.0.mlp.2.weight blocks.0.mlp.2.bias head.norm.weight head.norm.bias head.linear.weight`
	if !slices.Equal(state, strings.Fields(want)) {
		t.Errorf("parameters are %s", state)
	}
}

// The entries of Hugging Face's GPT2Model, but for the masks, which it keeps as buffers.
func TestNamesOfGPT2AreHuggingFaces(t *testing.T) {
	want := []string{"wte.weight 257 12", "wpe.weight 6 12"}
	for _, name := range []string{"ln_1.weight 12", "ln_1.bias 12", "attn.c_attn.weight 12 36",
		"attn.c_attn.bias 36",
		"attn.c_proj.weight 12 12", "attn.c_proj.bias 12", "ln_2.weight 12", "ln_2.bias 12",
		"mlp.c_fc.weight 12 48", "mlp.c_fc.bias 48",
		"mlp.c_proj.weight 48 12", "mlp.c_proj.bias 12"} {
		want = append(want, "h.0."+name)
	}
	want = append(want, "ln_f.weight 12", "ln_f.bias 12")
	var got []string
	for _, p := range nn.State(build(t, "gpt2",
		models.Options{Width: 12, Depth: 1, Heads: 3, Context: 6, Classes: 257})) {
		got = append(got, strings.Trim(fmt.Sprint(p.Name, " ", p.Shape()), "[]"))
	}
	for i := range got {
		got[i] = strings.Replace(got[i], "[", "", 1)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestNamesAreUniqueAndFollowTheLayers(t *testing.T) {
	for _, name := range models.Names() {
		s := build(t, name, models.Options{})
		seen := map[string]bool{}
		var ofModel, ofLayers []string
		for _, p := range nn.State(s) {
			if seen[p.Name] {
				t.Errorf("%s: %s is there twice", name, p.Name)
			}
			seen[p.Name] = true
			ofModel = append(ofModel, p.Name)
		}
		tied := map[*nn.Param]bool{} // a parameter that layers share is the first one's
		for _, l := range s.Layers() {
			for _, p := range l.State() {
				if !tied[p.Owner()] {
					tied[p.Owner()] = true
					ofLayers = append(ofLayers, p.Name)
				}
			}
		}
		if !slices.Equal(ofModel, ofLayers) {
			t.Errorf("%s: the model's parameters are not those of its layers in order", name)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, row := range []struct {
		model string
		o     models.Options
		want  string // in the error; "" is none
	}{
		{"vgg", models.Options{}, `Model is "vgg"; did you mean vgg11? want one of mlp, resnet20, ` +
			`resnet32, resnet44, resnet56, resnet18, `},
		{"unet", models.Options{Heads: 2},
			"unet: Heads is 2; want it left out; the model has B=6, C=72, classes=1, channels=3, " +
				"size=192, depth=5, dropout"},
		{"resnet20", models.Options{NoDropout: true},
			"resnet20: Dropout is 0; want it left out; the model has classes=10, channels=3, size=32, " +
				"width=16"},
		{"unet", models.Options{Convolutions: 1025},
			"unet: Convolutions is 1025; want 1 to 1024, or 0 for 6"},
		{"unet", models.Options{Dropout: 0.2, NoDropout: true},
			"unet: Dropout is 0.2; want at least 0 and below 1, and 0 with NoDropout"},
		{"unet", models.Options{Width: 1}, "unet: Width is 1; want C at least 2"},
		{"unet", models.Options{Depth: 11, Size: 16384}, "Depth is 11; want at most 10"},
		{"unet", models.Options{Width: 65536}, "C, which is 65536, times 2 to its power at most 1048576"},
		{"unet", models.Options{Size: 63},
			"unet: Size is 63; want at least 64, so that the lowest of 5 levels is more than a pixel"},
		{"unet", models.Options{Size: 64, NoDropout: true}, ""},
		{"amoebanetd", models.Options{Depth: 17}, "amoebanetd: Depth is 17; want L a multiple of 3"},
		{"amoebanetd", models.Options{Width: 100}, "amoebanetd: Width is 100; want D a multiple of 8"},
		{"amoebanetd", models.Options{Size: 28}, "amoebanetd: Size is 28; want a multiple of 32"},
		{"vgg11", models.Options{Size: 31}, "vgg11: Size is 31; want at least 32"},
		{"inception_v3", models.Options{Size: 298, Aux: true},
			"inception_v3: Size is 298; want at least 299 with Aux"},
		{"googlenet", models.Options{Size: 14, Aux: true}, "googlenet: Size is 14; want at least 15"},
		{"mlp", models.Options{Dropout: 1}, "mlp: Dropout is 1; want at least 0 and below 1"},
		{"gpt2-xl", models.Options{Heads: 7}, "gpt2-xl: Width is 1600; want a multiple of the 7 Heads"},
		{"vit_b_32", models.Options{Size: 48},
			"vit_b_32: Size is 48; want a multiple of 32, the size of a patch"},
		{"resnet20", models.Options{Classes: 10, Channels: 1, Size: 28}, ""},
		{"mlp", models.Options{Channels: 1 << 16, Size: 1}, ""}, // columns of a table
	} {
		s, err := models.New(row.model, row.o)
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%+v: %v", row, err)
		case row.want != "" && (err == nil || s != nil || !strings.Contains(err.Error(), row.want)):
			t.Errorf("%+v: got %v", row, err)
		}
	}
}

// full skips a test in a quick run (package draws).
func full(t *testing.T) {
	t.Helper()
	if !draws.Full {
		t.Skip("runs with PENSTOCK_TEST=full")
	}
}

func build(t *testing.T, name string, o models.Options) *nn.Sequential {
	t.Helper()
	s := must.Get(models.New(name, o))(t)
	return s
}

func ExampleNew() {
	s, err := models.New("resnet20", models.Options{Channels: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(s.Layers()), "layers,", nn.Count(s), "parameters")
	// Output: 11 layers, 272186 parameters
}

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
			t.Errorf("%s %+v has %d layers and %d parameters, want %d and %d (%s)", row.model, row.o, l, n,
				row.layers, row.params, row.published)
		}
	}
}

func TestSet(t *testing.T) {
	for _, row := range []struct {
		model       string
		assignments []string
		want        models.Options
		refused     string
	}{
		{"unet", []string{"B=11,C=128"}, models.Options{Convolutions: 11, Width: 128}, ""},
		{"gpt", []string{"width=64,depth=2", "heads=8,width=32"},
			models.Options{Width: 32, Depth: 2, Heads: 8}, ""},
		{"inception_v3", []string{"aux=1,dropout=0", "aux=0"}, models.Options{NoDropout: true}, ""},
		{"vgg", nil, models.Options{}, `Model is "vgg"; did you mean vgg11? want one of mlp, `},
		{"unet", []string{"classes=2", "b=6"}, models.Options{},
			"b=6: did you mean B? want one of its options; unet has B=6, C=72, classes=1, channels=3, " +
				"size=192, depth=5, dropout=0.1"},
		{"unet", []string{"B=1025"}, models.Options{}, "B=1025: want a whole number from 1 to 1024"},
		{"unet", []string{"dropout=NaN"}, models.Options{}, "want a number from 0 to below 1"},
		{"unet", []string{"width=6"}, models.Options{}, "want one of its options"},
	} {
		var o models.Options
		err := models.Set(row.model, &o, row.assignments)
		if o != row.want || (err == nil) != (row.refused == "") || err != nil &&
			!strings.Contains(err.Error(), row.refused) {
			t.Errorf("%s %q: got %+v, %v, want %+v, %q", row.model, row.assignments, o, err, row.want,
				row.refused)
		}
	}
}

// What Settings writes Set reads, for every option of every model.
func TestSettingsAreAssignments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(models.Names()).Draw(t, "model")
		defaults := must.Get(models.Settings(name, models.Options{}))(t)
		var o models.Options
		var assignments []string
		var want []models.Setting
		for _, s := range defaults {
			if rapid.Bool().Draw(t, "given") {
				switch s.Name {
				case "dropout":
					s.Value = rapid.Float64Range(0, 0.999).Draw(t, s.Name)
				case "aux":
					s.Value = rapid.IntRange(0, 1).Draw(t, s.Name)
				default:
					s.Value = rapid.IntRange(1, 1024).Draw(t, s.Name)
				}
				assignments = append(assignments, fmt.Sprintf("%s=%v", s.Name, s.Value))
			}
			want = append(want, s)
		}
		must.Do(t, models.Set(name, &o, assignments))
		got, err := models.Settings(name, o)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatalf("%s %v: %v\n%s", name, assignments, err, diff)
		}
	})
}
