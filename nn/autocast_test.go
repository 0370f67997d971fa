package nn_test

import (
	"math"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Under autocast every layer takes what a product gives, bfloat16, and goes back through it. What
// it gives is near what it gives in float32, and parameters have gradients of float32.
func TestLayersTakeWhatAProductGives(t *testing.T) {
	const half, single = torch.BFloat16, torch.Float32
	// of the length: where rounding moves one ReLU in a hundred to the other side, a tenth of a
	// gradient is another
	const tolerance = 0.2
	image, rows, sequence := []int64{8, 2, 12, 12}, []int64{8, 6}, []int64{2, 5, 8}
	transposed := torch.Float32 // as autocast of 1.13 has it; that of 2.6 has bfloat16
	if !strings.HasPrefix(torch.Version(), "1.") {
		transposed = half
	}
	for name, row := range map[string]struct {
		layer nn.Layer
		shape []int64
		gives torch.DType
	}{
		"Linear":                         {nn.NewLinear(6, 3), rows, half},
		"Conv2d":                         {nn.NewConv2d(2, 3, nn.Square(3), nn.Conv2dConfig{}), image, half},
		"BatchNorm1d":                    {nn.NewBatchNorm1d(6, nn.BatchNormConfig{}), rows, half},
		"BatchNorm2d":                    {nn.NewBatchNorm2d(2, nn.BatchNormConfig{Cumulative: true}), image, half},
		"BatchNorm without parameters":   {nn.NewBatchNorm2d(2, nn.BatchNormConfig{NoAffine: true, NoRunningStats: true}), image, half},
		"LayerNorm":                      {nn.NewLayerNorm([]int64{6}, nn.LayerNormConfig{}), rows, single},
		"LayerNorm without parameters":   {nn.NewLayerNorm([]int64{6}, nn.LayerNormConfig{NoAffine: true}), rows, half},
		"InstanceNorm2d":                 {nn.NewInstanceNorm2d(2, nn.InstanceNormConfig{}), image, half},
		"InstanceNorm2d with parameters": {nn.NewInstanceNorm2d(2, nn.InstanceNormConfig{Affine: true}), image, single},
		"Conv1d":                         {nn.NewConv1d(5, 3, 3, nn.Conv1dConfig{}), sequence, half},
		"ConvTranspose2d":                {nn.NewConvTranspose2d(2, 3, nn.Square(2), nn.ConvTranspose2dConfig{Stride: nn.Square(2)}), image, transposed},
		"GroupNorm":                      {nn.NewGroupNorm(1, 2, nn.GroupNormConfig{}), image, single},
		"GroupNorm without parameters":   {nn.NewGroupNorm(1, 2, nn.GroupNormConfig{NoAffine: true}), image, half},
		"RMSNorm":                        {nn.NewRMSNorm([]int64{6}, nn.RMSNormConfig{}), rows, single},
		"RMSNorm without parameters":     {nn.NewRMSNorm([]int64{6}, nn.RMSNormConfig{NoAffine: true}), rows, half},
		"SiLU":                           {nn.NewSiLU(), rows, half},
		"attention without a mask":       {nn.NewSelfAttention(8, 2, nn.NoMask), sequence, half},
		"attention with a mask":          {padded(nn.NewSelfAttention(8, 2, nn.GivenMask), []int64{5, 3}, true), sequence, half},
		"MaxPool2d":                      {nn.NewMaxPool2d(nn.Square(2), nn.MaxPool2dConfig{}), image, half},
		"AvgPool2d":                      {nn.NewAvgPool2d(nn.Square(2), nn.AvgPool2dConfig{}), image, half},
		"AdaptiveAvgPool2d":              {nn.NewAdaptiveAvgPool2d(nn.Square(1)), image, half},
		"Upsample":                       {nn.NewUpsample(nn.UpsampleConfig{Scale: [2]float64{2, 2}}), image, half},
		"ReLU":                           {nn.NewReLU(), rows, half},
		"ReLU in place":                  {nn.NewReLUInPlace(), rows, half},
		"LeakyReLU":                      {nn.NewLeakyReLU(nn.LeakyReLUConfig{}), rows, half},
		"GELU":                           {nn.NewGELU(), rows, half},
		"GELU of tanh":                   {nn.NewGELUTanh(), rows, half},
		"Tanh":                           {nn.NewTanh(), rows, half},
		"Sigmoid":                        {nn.NewSigmoid(), rows, half},
		"LogSoftmax":                     {nn.NewLogSoftmax(1), rows, half},
		"Softmax":                        {nn.NewSoftmax(1), rows, half},
		"Dropout":                        {nn.NewDropout(0.5), rows, half},
		"Dropout2d":                      {nn.NewDropout2d(0.5), image, half},
		"attention":                      {nn.NewCausalSelfAttention(8, 2), sequence, half},
		"a transformer block":            {nn.NewTransformerBlock(8, 2, nn.TransformerConfig{Dropout: 0.1}), sequence, half},
		"a basic block":                  {nn.NewBasicBlock(2, 4, 2), image, half},
		"a bottleneck":                   {nn.NewBottleneck(2, 2, 1), image, half},
	} {
		t.Run(name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true})
			nn.Materialise(c, nn.State(row.layer), 1)
			defer nn.Free(row.layer)
			root := c.To(c.Normal_(c.Empty(torch.Float32, row.shape...), 0, 1), torch.BFloat16)
			run := func(autocast bool) (y, grad *torch.Tensor) {
				if autocast {
					defer c.SetAutocast(c.SetAutocast(torch.AutocastBFloat16))
				}
				x := c.Clone(root).SetRequiresGrad(true)
				defer x.SetGradOf(nil)
				in := c.MulScalar(x, 1) // a layer may overwrite it
				if !autocast {
					in = c.To(x, torch.Float32)
				}
				y = nn.NewCtx(c, nn.Config{Training: true}).RunNamed(nn.NamedLayer{Name: "l", Layer: row.layer}, list{in})[0]
				c.SetSeed(2)
				upstream := c.Normal_(c.Empty(torch.Float32, y.Shape()...), 0, 1)
				c.Backward(list{y}, list{c.To(upstream, y.DType())}, false)
				for _, p := range nn.Params(row.layer) {
					if g := c.GradOf(p.Tensor()); g == nil || g.DType() != torch.Float32 {
						t.Errorf("autocast %v: the gradient of %s is %v", autocast, p.Name, g)
					}
				}
				nn.ZeroGrads(row.layer)
				return y, c.GradOf(x)
			}
			want, wantGrad := run(false)
			got, gotGrad := run(true)
			if got.DType() != row.gives && c.Device().Kind == torch.KindCPU { // for GPUs libtorch has other types for some
				t.Errorf("it gives %v, want %v", got, row.gives)
			}
			for what, pair := range map[string][2]*torch.Tensor{"output": {got, want}, "gradient": {gotGrad, wantGrad}} {
				if d := remoteness(c, pair[0], pair[1]); d > tolerance {
					t.Errorf("the %s differs by %.3g of its length", what, d)
				}
			}
		})
	}
}

// remoteness is the length of a - b relative to that of b.
func remoteness(c *torch.Ctx, a, b *torch.Tensor) float64 {
	length := func(t *torch.Tensor) float64 { return math.Sqrt(torch.Item[float64](c.Sum(c.Mul(t, t)))) }
	a, b = c.To(c.Detach(a), torch.Float64), c.To(c.Detach(b), torch.Float64)
	if l := length(b); l > 1e-6 {
		return length(c.Sub(a, b)) / l
	}
	return length(a)
}
