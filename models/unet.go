package models

import (
	"strconv"

	"penstock.example/nn"
	"penstock.example/torch"
)

// unets has the U-Net (Ronneberger et al. 2015) of torchgpipe's benchmarks (Kim et al. 2020,
// "torchgpipe"), which call its sizes B and C.
var unets = []model{{
	Info: Info{
		Name: "unet", Summary: "U-Net of 5 levels with B convolutions each, the first of C channels " +
			"(Ronneberger et al. 2015; Kim et al. 2020)",
		Kind: Segmentation, Input: []int64{3, 192, 192},
		Defaults: Options{Classes: 1, Channels: 3, Size: 192, Width: 72, Depth: 5, Convolutions: 6,
			Dropout: 0.1},
	},
	aliases: []alias{{"B", "Convolutions"}, {"C", "Width"}},
	dropout: true,
	build:   unet,
}}

const (
	unetDepth = 10      // maximum
	unetWidth = 1 << 20 // maximum channels of the bottleneck, so that counts fit an int64
)

// unet goes down through levels, each of half the size and twice the channels, and up again. A
// decoder reads the output of the encoder of its level:
//
//	encoder.0 ------------------------ skip ----------------------- decoder.4   segment
//	    encoder.1 -------------------- skip ------------------- decoder.3
//	        ...                                             ...
//	            encoder.4 ------------ skip ----------- decoder.0
//	                             bottleneck
//
// Every convolution, dropout, norm and activation is a layer: 4 B (2 depth + 1) + 4 depth + 1.
// Convolutions keep the size, where the paper's shrink it.
func unet(o Options) (*nn.Sequential, error) {
	if o.Width < 2 {
		return nil, refuse("unet", "Width", o.Width,
			"want C at least 2, as the last level has half as many channels")
	}
	if o.Depth > unetDepth || o.Width<<o.Depth > unetWidth {
		return nil, refuse("unet", "Depth", o.Depth,
			"want at most %d, and C, which is %d, times 2 to its power at most %d", unetDepth, o.Width,
			unetWidth)
	}
	if o.Size>>o.Depth < 2 {
		return nil, refuse("unet", "Size", o.Size,
			"want at least %d, so that the lowest of %d levels is more than a pixel", 2<<o.Depth, o.Depth)
	}
	stack := func(in, hidden, out int64) *nn.Sequential {
		return convolutions(o.Convolutions, in, hidden, out, o.Dropout)
	}
	in, base := int64(o.Channels), int64(o.Width)
	encoder, decoder := nn.NewSequential(), nn.NewSequential()
	spaces := make([]nn.Namespace, o.Depth)
	for i := range o.Depth {
		spaces[i] = nn.NewNamespace()
		skip, out := nn.NewSequential().Add("", nn.NewStash(unetSkip)), base<<i
		skip.Isolate(spaces[i])
		encoder.Add(strconv.Itoa(i), nn.NewSequential().
			Add("encode", stack(in, out, out)).
			Add("skip", skip).
			Add("down", nn.NewMaxPool2d(nn.Square(2), nn.PoolConfig{})))
		in = out
	}
	lowest := nn.NewSequential(stack(in, 2*in, in))
	for i := o.Depth - 1; i >= 0; i-- {
		skip, out := &concat{}, base<<i/2
		skip.Pops(unetSkip)
		skip.Isolate(spaces[i])
		decoder.Add(strconv.Itoa(decoder.Len()), nn.NewSequential().
			Add("up", nn.NewUpsample(nn.UpsampleConfig{Scale: [2]float64{2, 2}})).
			Add("skip", skip).
			Add("decode", stack(base<<(i+1), out, out)))
	}
	return nn.NewSequential().
		Add("encoder", encoder).
		Add("bottleneck", lowest).
		Add("decoder", decoder).
		Add("segment", convolution(base/2, int64(o.Classes), 1, 1)), nil
}

// convolutions is n times conv, dropout, norm and relu. The last has out channels, the others
// hidden.
func convolutions(n int, in, hidden, out int64, dropout float64) *nn.Sequential {
	s := nn.NewSequential()
	for i := range n {
		to := hidden
		if i == n-1 {
			to = out
		}
		s.Add(strconv.Itoa(i), nn.NewSequential().
			Add("conv", convolution(in, to, 3, 1)).
			Add("dropout", nn.NewDropout2d(dropout)).
			Add("norm", nn.NewInstanceNorm2d(to, nn.NormConfig{NoAffine: true})).
			Add("relu", nn.NewLeakyReLU(0, true))) // in place saves a third of the activations
		in = to
	}
	return s
}

const unetSkip = "skip"

// concat appends a skip connection's channels: [N, a, H, W] and a skip [N, b, H', W'] to [N, a + b,
// H', W']. An input that is smaller, because an odd size was halved, is padded with zeros at the
// bottom and on the right.
type concat struct{ nn.Base }

func (l *concat) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	skip := c.Pop(unetSkip)
	if bottom, right := skip.Size(2)-x.Size(2), skip.Size(3)-x.Size(3); bottom != 0 || right != 0 {
		x = c.Op("aten::constant_pad_nd", x, []int64{0, right, 0, bottom}, 0.)
	}
	y := c.Cat([]*torch.Tensor{x, skip}, 1)
	c.Release(mark, y)
	return y
}
