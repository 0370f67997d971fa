package draw

import (
	"bytes"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"penstock.example/internal/solver"
	"penstock.example/remat"
)

// Curve draws the time of plans over memory as an SVG. Each plan is a horizontal step from its own
// peak to the next plan's.
func Curve(title string, c remat.Chain, points []solver.Point, usual []remat.Baseline) ([]byte, error) {
	const highest = 120 // per cent
	at := func(peak int64, time float64) plotter.XY {
		xy := plotter.XY{X: float64(peak) / (1 << 20)}
		if once := c.Once(); once > 0 {
			xy.Y = 100 * (time - once) / once
		}
		return xy
	}
	var steps plotter.XYs
	for _, point := range points {
		steps = append(steps, at(point.Peak, point.Time))
	}
	marks := map[string]plotter.XYs{}
	left, right, top := steps[0].X, steps[len(steps)-1].X, max(10, min(steps[0].Y, highest))
	for _, b := range usual {
		xy := at(b.Peak, b.Time)
		if right = max(right, xy.X); xy.Y <= highest {
			marks[b.Strategy], top = append(marks[b.Strategy], xy), max(top, xy.Y)
		}
	}
	right += max(right/20, 0.01)
	line, err := plotter.NewLine(append(steps, plotter.XY{X: right, Y: steps[len(steps)-1].Y}))
	if err != nil {
		return nil, err
	}
	line.StepStyle, line.Color, line.Width = plotter.PostStep, plotutil.DarkColors[2], vg.Points(2)
	var scatters []any
	for _, strategy := range []string{"none", "sequential", "all"} {
		if xys := marks[strategy]; xys != nil {
			scatters = append(scatters, strategy, xys)
		}
	}
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "memory, MiB", "extra time, %"
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.Padding = true, true, 6.7*vg.Inch, vg.Points(3)
	p.Add(plotter.NewGrid(), line)
	p.Legend.Add("best plan", line)
	if err := plotutil.AddScatters(p, scatters...); err != nil {
		return nil, err
	}
	// Add widened the axes.
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = max(0, 2*left-right), right, -top/40, 1.06*top
	canvas := vgsvg.New(10*vg.Inch, 5*vg.Inch)
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(8), -vg.Points(8), vg.Points(8), -vg.Points(8)))
	var svg bytes.Buffer
	_, err = canvas.WriteTo(&svg)
	return svg.Bytes(), err
}
