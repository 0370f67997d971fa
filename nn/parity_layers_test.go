package nn_test

import (
	"encoding/json"
	"testing"

	"penstock.example/nn"
	"penstock.example/torch"
)

// Builders of the fixtures' layers from PyTorch's arguments.
var layers = map[string]func(t *testing.T, args string) nn.Layer{
	"Linear": func(t *testing.T, args string) nn.Layer {
		var a struct {
			In   int64 `json:"in_features"`
			Out  int64 `json:"out_features"`
			Bias bool
		}
		decodeStrictly(t, args, &a)
		if a.Bias {
			return nn.NewLinear(a.In, a.Out)
		}
		return nn.NewLinearNoBias(a.In, a.Out)
	},
	"Conv2d": func(t *testing.T, args string) nn.Layer {
		var a struct {
			In                        int64   `json:"in_channels"`
			Out                       int64   `json:"out_channels"`
			Kernel                    nn.Pair `json:"kernel_size"`
			Stride, Padding, Dilation nn.Pair
			Groups                    int64
			Bias                      bool
		}
		decodeStrictly(t, args, &a)
		return nn.NewConv2d(a.In, a.Out, a.Kernel, nn.Conv2dConfig{Stride: a.Stride, Padding: a.Padding, Dilation: a.Dilation, Groups: a.Groups, NoBias: !a.Bias})
	},
	"Conv1d": func(t *testing.T, args string) nn.Layer {
		var a struct {
			In                                int64 `json:"in_channels"`
			Out                               int64 `json:"out_channels"`
			Kernel                            int64 `json:"kernel_size"`
			Stride, Padding, Dilation, Groups int64
			Bias                              bool
		}
		decodeStrictly(t, args, &a)
		return nn.NewConv1d(a.In, a.Out, a.Kernel, nn.Conv1dConfig{Stride: a.Stride, Padding: a.Padding, Dilation: a.Dilation, Groups: a.Groups, NoBias: !a.Bias})
	},
	"ConvTranspose2d": func(t *testing.T, args string) nn.Layer {
		var a struct {
			In                        int64   `json:"in_channels"`
			Out                       int64   `json:"out_channels"`
			Kernel                    nn.Pair `json:"kernel_size"`
			OutputPadding             nn.Pair `json:"output_padding"`
			Stride, Padding, Dilation nn.Pair
			Groups                    int64
			Bias                      bool
		}
		decodeStrictly(t, args, &a)
		return nn.NewConvTranspose2d(a.In, a.Out, a.Kernel, nn.ConvTranspose2dConfig{Stride: a.Stride, Padding: a.Padding,
			OutputPadding: a.OutputPadding, Dilation: a.Dilation, Groups: a.Groups, NoBias: !a.Bias})
	},
	"GroupNorm": func(t *testing.T, args string) nn.Layer {
		a := struct {
			Groups   int64 `json:"num_groups"`
			Channels int64 `json:"num_channels"`
			Eps      float64
			Affine   bool
		}{Affine: true}
		decodeStrictly(t, args, &a)
		return nn.NewGroupNorm(a.Groups, a.Channels, nn.GroupNormConfig{Eps: a.Eps, NoAffine: !a.Affine})
	},
	"RMSNorm": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Shape  []int64 `json:"normalized_shape"`
			Eps    float64
			Affine bool `json:"elementwise_affine"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewRMSNorm(a.Shape, nn.RMSNormConfig{Eps: a.Eps, NoAffine: !a.Affine})
	},
	"BatchNorm1d": func(t *testing.T, args string) nn.Layer { return nn.NewBatchNorm1d(batchNormArgs(t, args)) },
	"BatchNorm2d": func(t *testing.T, args string) nn.Layer { return nn.NewBatchNorm2d(batchNormArgs(t, args)) },
	"LayerNorm": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Shape  []int64 `json:"normalized_shape"`
			Eps    float64
			Affine *bool `json:"elementwise_affine"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewLayerNorm(a.Shape, nn.LayerNormConfig{Eps: a.Eps, NoAffine: a.Affine != nil && !*a.Affine})
	},
	"InstanceNorm2d": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Features int64 `json:"num_features"`
			Eps      float64
			Affine   bool
		}
		decodeStrictly(t, args, &a)
		return nn.NewInstanceNorm2d(a.Features, nn.InstanceNormConfig{Eps: a.Eps, Affine: a.Affine})
	},
	"Embedding": func(t *testing.T, args string) nn.Layer {
		var a struct {
			N       int64  `json:"num_embeddings"`
			Dim     int64  `json:"embedding_dim"`
			Padding *int64 `json:"padding_idx"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewEmbedding(a.N, a.Dim, nn.EmbeddingConfig{PaddingIdx: a.Padding})
	},
	"ReLU": func(t *testing.T, args string) nn.Layer {
		var a struct{ InPlace bool }
		decodeStrictly(t, args, &a)
		if a.InPlace {
			return nn.NewReLUInPlace()
		}
		return nn.NewReLU()
	},
	"LeakyReLU": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Slope   float64 `json:"negative_slope"`
			InPlace bool
		}
		decodeStrictly(t, args, &a)
		return nn.NewLeakyReLU(nn.LeakyReLUConfig{Slope: a.Slope, InPlace: a.InPlace})
	},
	"GELU": func(t *testing.T, args string) nn.Layer {
		var a struct{ Approximate string }
		decodeStrictly(t, args, &a)
		if a.Approximate == "tanh" {
			return nn.NewGELUTanh()
		}
		return nn.NewGELU()
	},
	"SiLU":       func(t *testing.T, args string) nn.Layer { return nn.NewSiLU() },
	"Tanh":       func(t *testing.T, args string) nn.Layer { return nn.NewTanh() },
	"Sigmoid":    func(t *testing.T, args string) nn.Layer { return nn.NewSigmoid() },
	"Identity":   func(t *testing.T, args string) nn.Layer { return nn.NewIdentity() },
	"Softmax":    func(t *testing.T, args string) nn.Layer { return nn.NewSoftmax(dimArg(t, args)) },
	"LogSoftmax": func(t *testing.T, args string) nn.Layer { return nn.NewLogSoftmax(dimArg(t, args)) },
	"MaxPool2d": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Kernel                    nn.Pair `json:"kernel_size"`
			Stride, Padding, Dilation nn.Pair
			Ceil                      bool `json:"ceil_mode"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewMaxPool2d(a.Kernel, nn.MaxPool2dConfig{Stride: a.Stride, Padding: a.Padding, Dilation: a.Dilation, CeilMode: a.Ceil})
	},
	"AvgPool2d": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Kernel          nn.Pair `json:"kernel_size"`
			Stride, Padding nn.Pair
			Ceil            bool `json:"ceil_mode"`
			Include         bool `json:"count_include_pad"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewAvgPool2d(a.Kernel, nn.AvgPool2dConfig{Stride: a.Stride, Padding: a.Padding, CeilMode: a.Ceil, ExcludePadding: !a.Include})
	},
	"AdaptiveAvgPool2d": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Size nn.Pair `json:"output_size"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewAdaptiveAvgPool2d(a.Size)
	},
	"Flatten": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Start int64 `json:"start_dim"`
			End   int64 `json:"end_dim"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewFlatten(a.Start, a.End)
	},
	"Upsample": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Size  nn.Pair
			Scale [2]float64 `json:"scale_factor"`
			Mode  string
			Align bool `json:"align_corners"`
		}
		decodeStrictly(t, args, &a)
		return nn.NewUpsample(nn.UpsampleConfig{Size: a.Size, Scale: a.Scale, Bilinear: a.Mode == "bilinear", AlignCorners: a.Align})
	},
	"Dropout": func(t *testing.T, args string) nn.Layer {
		var a struct{ P float64 }
		decodeStrictly(t, args, &a)
		return nn.NewDropout(a.P)
	},
	"Dropout2d": func(t *testing.T, args string) nn.Layer {
		var a struct{ P float64 }
		decodeStrictly(t, args, &a)
		return nn.NewDropout2d(a.P)
	},
	"CausalSelfAttention": func(t *testing.T, args string) nn.Layer {
		var a struct{ Dim, Heads int64 }
		decodeStrictly(t, args, &a)
		return nn.NewCausalSelfAttention(a.Dim, a.Heads)
	},
	"SelfAttention": func(t *testing.T, args string) nn.Layer {
		var a struct {
			Dim, Heads int64
			Lengths    []int64
			Causal     bool
		}
		decodeStrictly(t, args, &a)
		switch {
		case a.Lengths != nil:
			return padded(nn.NewSelfAttention(a.Dim, a.Heads, nn.GivenMask), a.Lengths, a.Causal)
		case a.Causal:
			return nn.NewSelfAttention(a.Dim, a.Heads, nn.CausalMask)
		}
		return nn.NewSelfAttention(a.Dim, a.Heads, nn.NoMask)
	},
	"GPTBlock": func(t *testing.T, args string) nn.Layer {
		var a struct{ Dim, Heads int64 }
		decodeStrictly(t, args, &a)
		return nn.NewTransformerBlock(a.Dim, a.Heads, nn.TransformerConfig{})
	},
	"BasicBlock": func(t *testing.T, args string) nn.Layer {
		var a struct {
			In     int64 `json:"in_channels"`
			Out    int64 `json:"out_channels"`
			Stride int64
		}
		decodeStrictly(t, args, &a)
		return nn.NewBasicBlock(a.In, a.Out, a.Stride)
	},
	"Bottleneck": func(t *testing.T, args string) nn.Layer {
		var a struct {
			In            int64 `json:"in_channels"`
			Width, Stride int64
		}
		decodeStrictly(t, args, &a)
		return nn.NewBottleneck(a.In, a.Width, a.Stride)
	},
	"MLP": func(t *testing.T, args string) nn.Layer {
		var a struct{ Sizes []int64 }
		decodeStrictly(t, args, &a)
		var l []nn.Layer
		for i := 0; i+1 < len(a.Sizes); i++ {
			if i > 0 {
				l = append(l, nn.NewReLU())
			}
			l = append(l, nn.NewLinear(a.Sizes[i], a.Sizes[i+1]))
		}
		return nn.NewSequential(l...)
	},
	"TiedHead": func(t *testing.T, args string) nn.Layer {
		var a struct {
			N    int64 `json:"num_embeddings"`
			Dim  int64 `json:"embedding_dim"`
			Bias bool
		}
		decodeStrictly(t, args, &a)
		return tiedHead(a.N, a.Dim, a.Bias)
	},
	"SharedLinear": func(t *testing.T, args string) nn.Layer {
		var a struct{ Features int64 }
		decodeStrictly(t, args, &a)
		first := nn.NewLinear(a.Features, a.Features)
		second, third := nn.NewLinearShared(first.Weight, false), nn.NewLinearNoBias(a.Features, a.Features)
		second.Bias, third.Bias = second.Share("bias", first.Bias), third.Share("bias", first.Bias)
		return nn.NewSequential().Add("first", first).Add("tanh1", nn.NewTanh()).Add("second", second).Add("tanh2", nn.NewTanh()).Add("third", third)
	},
}

// padded runs layers on sequences of so many tokens each: the rest is hidden, and with causal what
// follows a token too.
func padded(s *nn.Sequential, lengths []int64, causal bool) nn.Layer {
	return nn.Tuple(s, func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		tokens := xs[0].Size(1)
		var hidden []bool
		for _, length := range lengths {
			for i := range tokens {
				if !causal && i > 0 {
					break // one row for all tokens
				}
				for j := range tokens {
					hidden = append(hidden, j >= length || causal && j > i)
				}
			}
		}
		mask := torch.From(c.Ctx, hidden, int64(len(lengths)), int64(len(hidden))/int64(len(lengths))/tokens, tokens)
		return s.ForwardTuple(c, []*torch.Tensor{xs[0], mask})[:1]
	})
}

func buildLayer(t *testing.T, layer string, args json.RawMessage) nn.Layer {
	build := layers[layer]
	if build == nil {
		t.Fatalf("layer %q is unknown to this test", layer)
	}
	return build(t, string(args))
}

func batchNormArgs(t *testing.T, args string) (int64, nn.BatchNormConfig) {
	a := struct {
		Features int64 `json:"num_features"`
		Eps      float64
		Momentum *float64
		Affine   bool
		Track    bool `json:"track_running_stats"`
	}{Momentum: new(0.1), Affine: true, Track: true}
	decodeStrictly(t, args, &a)
	o := nn.BatchNormConfig{Eps: a.Eps, NoAffine: !a.Affine, NoRunningStats: !a.Track, Cumulative: a.Momentum == nil}
	if a.Momentum != nil {
		o.Momentum = *a.Momentum
	}
	return a.Features, o
}

func dimArg(t *testing.T, args string) int64 {
	var a struct{ Dim int64 }
	decodeStrictly(t, args, &a)
	return a.Dim
}

// buildLoss is nil when the case is not a loss. Class weights are in the file.
func buildLoss(t *testing.T, p parityCase, f *fixture) nn.Loss {
	var a struct {
		Reduction string
		Smoothing float64 `json:"label_smoothing"`
		Ignore    *int64  `json:"ignore_index"`
		Weight    bool
		PosWeight bool `json:"pos_weight"`
		Delta     float64
	}
	switch p.Layer {
	case "CrossEntropyLoss", "MSELoss", "L1Loss", "HuberLoss", "NLLLoss", "BCEWithLogitsLoss":
		decodeStrictly(t, string(p.Args), &a)
	}
	sum := a.Reduction == "sum"
	switch p.Layer {
	case "CrossEntropyLoss":
		l := nn.CrossEntropy().LabelSmoothing(a.Smoothing).Weight(f.vector(a.Weight, "buffer.weight"))
		if a.Ignore != nil {
			l = l.IgnoreIndex(*a.Ignore)
		}
		if sum {
			return l.Sum()
		}
		return l
	case "MSELoss":
		if sum {
			return nn.MSE().Sum()
		}
		return nn.MSE()
	case "L1Loss":
		if sum {
			return nn.L1().Sum()
		}
		return nn.L1()
	case "HuberLoss":
		if sum {
			return nn.Huber(a.Delta).Sum()
		}
		return nn.Huber(a.Delta)
	case "NLLLoss":
		l := nn.NLL().IgnoreIndex(*a.Ignore).Weight(f.vector(a.Weight, "buffer.weight"))
		if sum {
			return l.Sum()
		}
		return l
	case "BCEWithLogitsLoss":
		l := nn.BCEWithLogits().PosWeight(f.vector(a.PosWeight, "buffer.pos_weight"))
		if sum {
			return l.Sum()
		}
		return l
	}
	return nil
}
