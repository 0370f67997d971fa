package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"penstock.example/nn"
)

// IsFolder reports whether the name of a model is the path of a folder in Hugging Face's layout: it
// has a / in it, or is "." or "..". The folder's config.json gives the sizes.
func IsFolder(name string) bool {
	return name == "." || name == ".." || strings.ContainsRune(name, filepath.Separator)
}

// families makes the models of config.json by the value of model_type.
var families = map[string]func(*config, string) model{
	"gpt2":    gpt2Family,
	"llama":   llamaFamily,
	"mistral": llamaFamily,
	"qwen2":   llamaFamily,
	"qwen3":   llamaFamily,
	"vit":     viTFamily,
}

// openFolder reads config.json and refuses fields that it does not know.
func openFolder(folder string) (model, error) {
	c := &config{path: filepath.Join(folder, "config.json")}
	if err := c.read(); err != nil {
		return model{}, err
	}
	name := get(c, "model_type", "")
	family, known := families[name]
	if !known {
		return model{}, c.errorf("model_type %q; want one of %s", name,
			strings.Join(slices.Sorted(maps.Keys(families)), ", "))
	}
	m := family(c, name)
	for name, value := range c.fields {
		if !slices.Contains(harmless, name) && !strings.HasPrefix(name, "summary_") &&
			string(value) != "null" {
			c.refuse(name, string(value), "left out, as the field may change results and is not supported")
		}
	}
	m.Name = folder
	return m, c.err
}

// harmless are fields that do not change what a model computes, or that only generation uses.
var harmless = []string{
	"_attn_implementation_autoset", "_name_or_path", "_num_labels", "architectures", "bos_token_id",
	"chunk_size_feed_forward", "decoder_start_token_id", "dtype", "encoder_stride", "eos_token_id",
	"forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label",
	"initializer_range", "is_decoder", "is_encoder_decoder", "keys_to_ignore_at_inference",
	"label2id", "max_window_layers", "n_ctx", "output_attentions", "output_hidden_states",
	"pad_token_id", "pooler_act", "pooler_output_size", "problem_type", "return_dict", "sep_token_id",
	"task_specific_params", "tokenizer_class", "torch_dtype", "transformers_version", "unk_token_id",
	"use_cache",
}

// config is a file of settings in JSON whose fields are read once.
type config struct {
	path   string
	fields map[string]json.RawMessage // not read yet
	err    error                      // the first
}

func (c *config) read() error {
	text, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("models: no model in Hugging Face's layout: %w", err)
	}
	if err := json.Unmarshal(text, &c.fields); err != nil {
		return c.errorf("%v", err)
	}
	return nil
}

func (c *config) errorf(format string, args ...any) error {
	return fmt.Errorf("models: %s: "+format, append([]any{c.path}, args...)...)
}

func (c *config) refuse(field, value, want string) {
	if c.err == nil {
		c.err = c.errorf("%s is %s; want it %s", field, value, want)
	}
}

// get reads a field. If the field is absent or null, get returns fallback.
func get[T any](c *config, name string, fallback T) T {
	text, there := c.fields[name]
	delete(c.fields, name)
	if value := fallback; there && string(text) != "null" {
		if json.Unmarshal(text, &value) == nil {
			return value
		}
		c.refuse(name, string(text), fmt.Sprintf("of type %T", fallback))
	}
	return fallback
}

// mustBe refuses a field whose value is not allowed. An absent field has the value fallback.
func mustBe[T comparable](c *config, name string, fallback T, allowed ...T) {
	if value := get(c, name, fallback); !slices.Contains(allowed, value) {
		c.refuse(name, fmt.Sprint(value), strings.Trim(fmt.Sprint(allowed), "[]"))
	}
}

// size reads a field that must be at least 1. With 0 as fallback the field must exist.
func (c *config) size(name string, fallback int64) int64 {
	n := get(c, name, fallback)
	if n < 1 || n > 1<<24 {
		c.refuse(name, fmt.Sprint(n), "1 to 2^24")
	}
	return max(n, 1)
}

// llamaFamily reads models with the blocks of Llama (Touvron et al. 2023).
func llamaFamily(c *config, family string) model {
	d := decoder{vocab: c.size("vocab_size", 0), depth: int(c.size("num_hidden_layers", 0)),
		hidden: c.size("intermediate_size", 0), tied: get(c, "tie_word_embeddings", false)}
	a := &d.attention
	a.Causal, a.Dim, a.Heads = true, c.size("hidden_size", 0), c.size("num_attention_heads", 0)
	a.KVHeads = c.size("num_key_value_heads", a.Heads)
	a.Eps = get(c, "rms_norm_eps", 1e-6)
	a.HeadDim = c.size("head_dim", max(a.Dim/a.Heads, 1))
	if a.Heads%a.KVHeads != 0 {
		c.refuse("num_key_value_heads", fmt.Sprint(a.KVHeads),
			fmt.Sprintf("a divisor of the %d heads", a.Heads))
	}
	mustBe(c, "hidden_act", "silu", "silu")
	mustBe(c, "attention_dropout", 0.0, 0)
	mustBe(c, "mlp_bias", false, false)
	mustBe(c, "pretraining_tp", 1, 1)
	mustBe(c, "use_mrope", false, false)
	switch family {
	case "llama", "qwen3":
		a.Bias = get(c, "attention_bias", false)
		a.OutBias, a.NormHeads = a.Bias, family == "qwen3"
	case "qwen2":
		a.Bias = true
	}
	context := c.size("max_position_embeddings", 2048)
	window := get(c, "sliding_window", int64(0))
	if get(c, "use_sliding_window", family == "mistral") && window > 0 && window < context {
		a.Window = window
	}
	for _, kind := range get(c, "layer_types", []string(nil)) {
		if kind != "full_attention" && (kind != "sliding_attention" || window == 0) {
			c.refuse("layer_types", kind, "full_attention or sliding_attention")
		} else if kind == "sliding_attention" {
			a.Window = window
		}
	}
	a.Frequencies = c.frequencies(a.HeadDim)
	m := model{
		Info: Info{Kind: Text, Input: []int64{min(context, 512)},
			Summary: fmt.Sprintf("%s: %d blocks of %d heads over %d, %d wide", family, d.depth, a.Heads,
				a.KVHeads, a.Dim),
			Defaults: Options{Classes: int(d.vocab), Context: int(context)}},
	}
	m.vocab = int(d.vocab)
	m.build = func(Options) (*nn.Sequential, error) { return d.build(), nil }
	return m
}

// frequencies returns the rotations of a head in radians per token, for each pair of elements (Su
// et al. 2021, "RoFormer", equation 15), scaled by rope_scaling.
func (c *config) frequencies(headDim int64) []float64 {
	scaling := &config{path: c.path, fields: get(c, "rope_scaling", map[string]json.RawMessage{})}
	maps.Copy(scaling.fields, get(c, "rope_parameters", map[string]json.RawMessage{}))
	theta := get(scaling, "rope_theta", get(c, "rope_theta", 10000.0))
	part := get(scaling, "partial_rotary_factor", get(c, "partial_rotary_factor", 1.0))
	kind := get(scaling, "rope_type", get(scaling, "type", "default"))
	n := int64(float64(headDim)*part) / 2
	if n < 1 || 2*n > headDim || theta <= 0 {
		c.refuse("head_dim", fmt.Sprint(headDim), "even, with rope_theta and partial_rotary_factor above 0")
		return nil
	}
	list := make([]float64, n)
	for i := range list {
		list[i] = math.Pow(theta, -float64(i)/float64(n))
	}
	switch kind {
	case "default":
	case "linear":
		factor := scaling.positive("factor", 1)
		for i := range list {
			list[i] /= factor
		}
	case "llama3":
		scaling.llama3(list)
	default:
		c.refuse("rope_type", kind, "default, linear or llama3")
	}
	for name, value := range scaling.fields {
		c.refuse(name+" of the rotations", string(value), "left out, as it is not supported")
	}
	if c.err == nil {
		c.err = scaling.err
	}
	return list
}

func (c *config) positive(name string, standard float64) float64 {
	v := get(c, name, standard)
	if !(v > 0) {
		c.refuse(name, fmt.Sprint(v), "above 0")
	}
	return v
}

// llama3 divides slow rotations by the factor, as the transformers library does. A rotation whose
// full turn takes more than original/low tokens is divided, one below original/high tokens stays,
// and in between the result is interpolated.
func (c *config) llama3(list []float64) {
	factor, low := c.positive("factor", 8), c.positive("low_freq_factor", 1)
	high, original := get(c, "high_freq_factor", 4.0), get(c, "original_max_position_embeddings", 8192.0)
	if high <= low {
		c.refuse("high_freq_factor", fmt.Sprint(high), "above low_freq_factor")
	}
	for i, f := range list {
		turn := 2 * math.Pi / f // tokens
		kept := min(max((original/turn-low)/(high-low), 0), 1)
		list[i] = (1-kept)*f/factor + kept*f
	}
}

// gpt2Family reads GPT-2.
func gpt2Family(c *config, _ string) model {
	o := Options{Width: int(c.size("n_embd", 0)), Depth: int(c.size("n_layer", 0)),
		Heads: int(c.size("n_head", 0)), Context: int(c.size("n_positions", 1024)),
		Classes: int(c.size("vocab_size", 0)), Dropout: get(c, "resid_pdrop", 0.1)}
	context := o.Context // fixed by the weights, whatever the length of texts
	mustBe(c, "embd_pdrop", 0.1, o.Dropout)
	mustBe(c, "attn_pdrop", 0.1, o.Dropout)
	mustBe(c, "activation_function", "gelu_new", "gelu_new", "gelu_pytorch_tanh")
	mustBe(c, "layer_norm_epsilon", 1e-5, 1e-5)
	mustBe(c, "n_inner", int64(4*o.Width), int64(4*o.Width))
	mustBe(c, "scale_attn_weights", true, true)
	mustBe(c, "scale_attn_by_inverse_layer_idx", false, false)
	mustBe(c, "reorder_and_upcast_attn", false, false)
	mustBe(c, "add_cross_attention", false, false)
	mustBe(c, "tie_word_embeddings", true, true)
	return model{
		dropout: true, vocab: o.Classes,
		Info: Info{Kind: Text, Input: []int64{int64(min(o.Context, 512))}, Defaults: o,
			Summary: fmt.Sprintf("gpt2: %d blocks of %d heads, %d wide", o.Depth, o.Heads, o.Width)},
		build: func(o Options) (*nn.Sequential, error) {
			o.Context = context
			return buildGPT2(o, "transformer"), nil
		},
	}
}

// viTFamily reads Vision Transformers (Dosovitskiy et al. 2020).
func viTFamily(c *config, _ string) model {
	patch, size := c.size("patch_size", 16), c.size("image_size", 224)
	width, hidden := c.size("hidden_size", 0), c.size("intermediate_size", 0)
	depth, heads := c.size("num_hidden_layers", 0), c.size("num_attention_heads", 0)
	labels := get(c, "id2label", map[string]string{"0": "", "1": ""})
	eps, bias := get(c, "layer_norm_eps", 1e-12), get(c, "qkv_bias", true)
	mustBe(c, "hidden_act", "gelu", "gelu")
	mustBe(c, "attention_probs_dropout_prob", 0.0, 0)
	o := Options{Classes: len(labels), Channels: int(c.size("num_channels", 3)), Size: int(size),
		Dropout: get(c, "hidden_dropout_prob", 0.0)}
	if size%patch != 0 {
		c.refuse("image_size", fmt.Sprint(size), fmt.Sprintf("a multiple of the patch size %d", patch))
	}
	if width%heads != 0 {
		c.refuse("hidden_size", fmt.Sprint(width), fmt.Sprintf("a multiple of the %d heads", heads))
	}
	attention := nn.AttentionConfig{Dim: width, Heads: heads, KVHeads: heads, HeadDim: width / heads,
		Names: [3]string{"query", "key", "value"}, Bias: bias, OutBias: true}
	norm := func() nn.Layer { return nn.NewLayerNorm([]int64{width}, nn.NormConfig{Eps: eps}) }
	layer := func(name string, l nn.Layer) nn.NamedLayer { return nn.NamedLayer{Name: name, Layer: l} }
	build := func(o Options) (*nn.Sequential, error) {
		if int64(o.Size) != size {
			return nil, refuse(filepath.Dir(c.path), "Size", o.Size, "want %d, which the positions fix", size)
		}
		blocks := nn.NewSequential()
		for i := range int(depth) {
			heads := nn.NewGroupedAttention(attention)
			first := []nn.NamedLayer{layer("layernorm_before", norm()),
				layer("attention.attention", heads[0].Layer),
				heads[1], layer("attention.output.dense", heads[2].Layer)}
			second := []nn.NamedLayer{layer("layernorm_after", norm()),
				layer("intermediate.dense", nn.NewLinear(width, hidden)), layer("act", nn.NewGELU()),
				layer("output.dense", nn.NewLinear(hidden, width))}
			if o.Dropout != 0 {
				first = append(first, layer("attention.output.dropout", nn.NewDropout(o.Dropout)))
				second = append(second, layer("output.dropout", nn.NewDropout(o.Dropout)))
			}
			blocks.Add(strconv.Itoa(i), nn.NewSequential().AddResidual("1", first...).AddResidual("2",
				second...))
		}
		side := size / patch
		embeddings := nn.NewSequential().
			Add("patch_embeddings.projection", nn.NewConv2d(int64(o.Channels), width, nn.Square(patch),
				nn.ConvConfig{Stride: nn.Square(patch)})).
			Add("cls_token", newClassToken(width, side)).
			Add("position_embeddings", newAddParam("", 1, side*side+1, width))
		addDropout(embeddings, "dropout", o.Dropout)
		body := nn.NewSequential().
			Add("embeddings", embeddings).
			Add("encoder.layer", blocks).
			Add("layernorm", norm())
		return nn.NewSequential().
			Add("vit", body).
			Add("token", &firstToken{}).
			Add("classifier", nn.NewLinear(width, int64(o.Classes))), nil
	}
	mean, std := c.normalisation()
	return model{dropout: true, build: build, Info: Info{Kind: Image, Defaults: o, Mean: mean, Std: std,
		Input: []int64{int64(o.Channels), size, size},
		Summary: fmt.Sprintf("vit: %dx%[1]d patches, %d blocks of %d heads, %d wide", patch, depth, heads,
			width)}}
}

// normalisation reads the mean and deviation of pictures by channel. Without a
// preprocessor_config.json they are nil.
func (c *config) normalisation() (mean, std []float64) {
	p := &config{path: filepath.Join(filepath.Dir(c.path), "preprocessor_config.json")}
	if _, err := os.Stat(p.path); err != nil {
		return nil, nil
	}
	err := p.read()
	mean, std = get(p, "image_mean", []float64{0.5, 0.5, 0.5}), get(p, "image_std", []float64{0.5, 0.5, 0.5})
	if mustBe(p, "do_rescale", true, true); !get(p, "do_normalize", true) {
		mean, std = make([]float64, len(mean)), slices.Repeat([]float64{1}, len(std))
	}
	mustBe(p, "rescale_factor", 1.0/255, 1.0/255)
	c.err = cmp.Or(c.err, err, p.err)
	return mean, std
}
