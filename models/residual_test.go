package models_test

import (
	"bytes"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/torch"
)

// plainResNet is a residual network whose blocks are layers of package nn, of which the parity
// fixtures speak.
func plainResNet(block func(in, width, stride int64) *nn.Residual, expansion int64, blocks []int, classes int64) *nn.Sequential {
	s := nn.NewSequential().
		Add("conv1", nn.NewConv2d(3, 64, nn.Square(7), nn.Conv2dConfig{Stride: nn.Square(2), Padding: nn.Square(3), NoBias: true})).
		Add("bn1", nn.NewBatchNorm2d(64, nn.BatchNormConfig{})).
		Add("relu", nn.NewReLU()).
		Add("maxpool", nn.NewMaxPool2d(nn.Square(3), nn.MaxPool2dConfig{Stride: nn.Square(2), Padding: nn.Square(1)}))
	in := int64(64)
	for g, n := range blocks {
		group := nn.NewSequential()
		for i := range n {
			stride := int64(1)
			if g > 0 && i == 0 {
				stride = 2
			}
			group.Add(strconv.Itoa(i), block(in, 64<<g, stride))
			in = expansion * 64 << g
		}
		s.Add("layer"+strconv.Itoa(g+1), group)
	}
	return s.Add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).Add("flatten", nn.NewFlatten(1, -1)).Add("fc", nn.NewLinear(in, classes))
}

// Blocks that a balance may cut inside compute what blocks in one piece do, to the bit, and name
// their parameters alike.
func TestResNetIsThatOfWholeBlocks(t *testing.T) {
	for _, row := range []struct {
		name  string
		plain *nn.Sequential
	}{
		{"resnet18", plainResNet(nn.NewBasicBlock, 1, []int{2, 2, 2, 2}, 5)},
		{"resnet50", plainResNet(nn.NewBottleneck, nn.BottleneckExpansion, []int{3, 4, 6, 3}, 5)},
	} {
		t.Run(row.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			c := torchtest.New(t, torch.Options{Grad: true})
			x, _ := input(t, c, row.name, models.Options{})
			results := func(s *nn.Sequential) (names []string, values [][]byte) {
				for _, p := range nn.Params(s) {
					p.SetInit(nn.FanIn(64))
				}
				materialise(t, c, s)
				y := s.Forward(training(c), x)
				c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
				values = append(gradients(t, c, s), torch.Bytes(c.Contiguous(y)))
				for _, p := range nn.State(s) {
					names = append(names, p.Name)
				}
				return names, append(values, buffers(s)...)
			}
			names, values := results(build(t, row.name, models.Options{Classes: 5}))
			wantNames, wantValues := results(row.plain)
			if !slices.Equal(names, wantNames) {
				t.Errorf("the state is %q,\nwant %q", names, wantNames)
			}
			if !slices.EqualFunc(values, wantValues, bytes.Equal) {
				t.Error("gradients, output or running statistics differ")
			}
		})
	}
}

// A balance of resnet101 counts these.
func TestLayersOfABottleneck(t *testing.T) {
	var names []string
	for _, l := range build(t, "resnet101", models.Options{}).Layers()[4:27] {
		names = append(names, l.Name)
	}
	want := []string{"layer1.0.identity", "layer1.0.conv1", "layer1.0.bn1", "layer1.0.relu1", "layer1.0.conv2", "layer1.0.bn2", "layer1.0.relu2", "layer1.0.conv3", "layer1.0.bn3",
		"layer1.0.downsample", "layer1.0.relu3",
		"layer1.1.identity", "layer1.1.conv1", "layer1.1.bn1", "layer1.1.relu1", "layer1.1.conv2", "layer1.1.bn2", "layer1.1.relu2", "layer1.1.conv3", "layer1.1.bn3",
		"layer1.1.add", "layer1.1.relu3", "layer1.2.identity"}
	if !slices.Equal(names, want) {
		t.Errorf("got  %q\nwant %q", names, want)
	}
}

// Between the layers of a block nothing is kept that a block in one piece would not keep.
func TestBlocksCutOpenKeepNoMore(t *testing.T) {
	c := torch.NewCtx(torch.Options{Device: torch.CPU(5), Grad: true, Threads: 1})
	torchtest.Check(t)
	defer c.Close()
	kept := func(s *nn.Sequential) (live, peak int64) {
		materialise(t, c, s)
		x := c.Ones(torch.Float32, 2, 3, 32, 32)
		before := c.Device().Memory().Live
		c.Device().ResetPeak()
		y := s.Forward(training(c), x)
		m := c.Device().Memory()
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
		nn.ZeroGrads(s)
		c.Release(0)
		return m.Live - before, m.Peak - before
	}
	live, peak := kept(build(t, "resnet50", models.Options{Classes: 5}))
	wantLive, wantPeak := kept(plainResNet(nn.NewBottleneck, nn.BottleneckExpansion, []int{3, 4, 6, 3}, 5))
	if live > wantLive || peak > wantPeak {
		t.Errorf("%d bytes are kept and %d were live, want at most %d and %d", live, peak, wantLive, wantPeak)
	}
}
