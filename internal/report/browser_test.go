package report_test

import (
	"context"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"penstock.example/internal/metrics"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/internal/report"
	"penstock.example/internal/solver"
)

// best is the curve of chain.
func best(t testing.TB) []solver.Point {
	t.Helper()
	return must.Get(solver.Curve(context.Background(), chain(), solver.Options{}))(t)
}

// TestMain gives Chromium a folder for temporary files, which is removed when it has ended.
func TestMain(m *testing.M) {
	flag.Parse()
	temporary, err := os.MkdirTemp("", "report")
	if err == nil {
		err = os.Setenv("TMPDIR", temporary)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if browser != nil {
		_ = chromedp.Cancel(browser) // which waits for its end
	}
	if err := os.RemoveAll(temporary); err != nil {
		fmt.Fprintln(os.Stderr, "what Chromium has left:", err)
	}
	os.Exit(code)
}

// browser is where tabs come from: one Chromium for all tests. It is nil where none was started.
var browser context.Context

var chromium = sync.OnceValues(func() (context.Context, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
				chromedp.NoSandbox,
				chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(time.Minute))
			exec, _ := chromedp.NewExecAllocator(context.Background(), options...)
			browser, _ = chromedp.NewContext(exec)
			return browser, chromedp.Run(browser)
		}
	}
	return nil, exec.ErrNotFound
})

// tab is a page in Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string // messages of the console, errors, dialogs
	asked    []string // addresses that were requested
}

// newTab opens a tab of a size. When the test ends nothing must have been said on the console.
func newTab(t *testing.T, width, height int64) *tab {
	t.Helper()
	browser, err := chromium()
	if err == exec.ErrNotFound {
		if _, apt := exec.LookPath("apt-get"); apt == nil {
			t.Fatal("there is no Chromium to test the page with; scripts/setup test installs it")
		}
		t.Skip("there is no Chromium to test the page with, and no apt-get with which scripts/setup test " +
			"could install it")
	}
	if err != nil {
		t.Fatalf("Chromium does not start: %v", err)
	}
	opened, closeTab := chromedp.NewContext(browser)
	ctx, cancel := context.WithTimeout(opened, proctest.Limit) // a test that hangs says where
	p := &tab{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventConsoleAPICalled:
			for _, a := range e.Args {
				p.problems = append(p.problems, fmt.Sprintf("console %s: %s", e.Type, a.Value))
			}
		case *runtime.EventExceptionThrown:
			p.problems = append(p.problems, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			p.problems = append(p.problems,
				fmt.Sprintf("log %s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		case *cdppage.EventJavascriptDialogOpening:
			p.problems = append(p.problems, "dialog: "+e.Message)
			go chromedp.Run(ctx, cdppage.HandleJavaScriptDialog(true))
		case *network.EventRequestWillBeSent:
			p.asked = append(p.asked, e.Request.URL)
		}
	})
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.problems) > 0 {
			t.Errorf("the page says:\n%s", strings.Join(p.problems, "\n"))
		}
		cancel()
		closeTab()
	})
	p.run(network.Enable(), log.Enable(), chromedp.EmulateViewport(width, height))
	return p
}

func (p *tab) run(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// open shows a page from a file.
func (p *tab) open(page report.Page) {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(written(p.t, page)), 0o666); err != nil {
		p.t.Fatal(err)
	}
	p.run(chromedp.Navigate("file://" + path))
	p.frame()
}

// frame waits until what is due has been painted. Chromium paints no tab that is behind another.
func (p *tab) frame() {
	p.t.Helper()
	p.run(cdppage.BringToFront(), chromedp.Evaluate(`new Promise(done => requestAnimationFrame(() => `+
		`requestAnimationFrame(() => done(true))))`, nil,
		func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
}

// text is the value of an expression.
func (p *tab) text(expression string) (out string) {
	p.t.Helper()
	p.run(chromedp.Evaluate("String("+expression+")", &out))
	return out
}

// want says that an expression has a value.
func (p *tab) want(expression, value string) {
	p.t.Helper()
	if got := p.text(expression); got != value {
		p.t.Errorf("%s is %q, want %q", expression, got, value)
	}
}

// until waits until an expression has a value.
func (p *tab) until(expression, value string) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, chromedp.Poll(fmt.Sprintf("String(%s) === %q", expression, value), nil,
		chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(30*time.Second))); err != nil {
		p.t.Fatalf("%s is %q, want %q: %v", expression, p.text(expression), value, err)
	}
}

// at is a point of an element's canvas in the window.
func (p *tab) at(id string, x, y float64) (float64, float64) {
	p.t.Helper()
	var at [2]float64
	p.run(chromedp.Evaluate(fmt.Sprintf(`(() => { const c = document.querySelector("#%s canvas"); `+
		`c.scrollIntoView({ block: "center" }); const r = c.getBoundingClientRect(); return [r.left + `+
		`%g, r.top + %g]; })()`, id, x, y), &at))
	return at[0], at[1]
}

// hover moves the mouse over a point of a canvas and returns the tooltip.
func (p *tab) hover(id string, x, y float64) string {
	p.t.Helper()
	cx, cy := p.at(id, x, y)
	p.run(chromedp.MouseEvent(input.MouseMoved, cx-1, cy), chromedp.MouseEvent(input.MouseMoved, cx, cy))
	return p.text(`document.getElementById("tip").hidden ? "" : document.getElementById("tip").innerText`)
}

// colours counts the pixels of a canvas that have the colour of a variable of the style.
func (p *tab) colours(id, variable string) (n int) {
	p.t.Helper()
	p.run(chromedp.Evaluate(fmt.Sprintf(`(() => {
		const c = document.querySelector("#%s canvas"), copy = document.createElement("canvas");
		copy.width = c.width; copy.height = c.height;
		const probe = copy.getContext("2d", { willReadFrequently: true });
		const i = document.body.appendChild(document.createElement("i")); i.style.color = "var(--%s)";
		probe.fillStyle = getComputedStyle(i).color; i.remove(); probe.fillRect(0, 0, 1, 1);
		const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
		probe.clearRect(0, 0, 1, 1); probe.drawImage(c, 0, 0);
		const all = probe.getImageData(0, 0, c.width, c.height).data;
		let n = 0;
		for (let i = 0; i < all.length; i += 4) if (all[i] === r && all[i + 1] === g && all[i + 2] === b) n++;
		return n; })()`, id, variable), &n))
	return n
}

// drawn is all texts that the page draws on its canvases, between bars.
func (p *tab) drawn() string {
	p.t.Helper()
	p.run(chromedp.Evaluate(`window.texts = "|"; (() => { const draw = CanvasRenderingContext2D.prototype.fillText;
		CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
			window.texts += text + "|"; draw.call(this, text, ...at); }; })();
		document.getElementById("theme").click()`, nil))
	p.frame()
	return p.text("window.texts")
}

const (
	left    = 132 // of the timeline's axis on a wide screen
	lane    = 32  // from one worker to the next
	planned = 26  // the first lane
)

// A page shows everything, asks for nothing, and says nothing on the console.
func TestPageRenders(t *testing.T) {
	p := newTab(t, 1600, 1200)
	content := page(t, 4, 8)
	content.History.Steps[6].PeakBytes[2] = 48 << 20
	content.History.Steps[3].PeakBytes[1], content.Run.From = 70<<20, 4 // under another limit
	content.History.Steps[399].Loss = 100
	p.open(content)
	p.want(`document.title`, "gpt on text · Penstock")
	p.want(`document.querySelector("h1").textContent`, "gpt on text")
	p.want(`document.querySelectorAll("main > section:not([hidden])").length`, "6")
	p.want(`document.querySelectorAll(".tile").length`, "6")
	p.want(`[...document.querySelectorAll(".tile .name")].map(e => e.textContent).join()`,
		"Steps,Loss,Test accuracy,Samples a second,Idle,Peak memory")
	p.want(`document.querySelector(".tile:last-child").innerText.replaceAll("\n", " ")`,
		"Peak memory 48 MiB cpu:2, 75 % of 64 MiB")
	p.want(`[...document.querySelectorAll("#devices tr")].map(e => e.children[5].innerText.trim()).join()`,
		"Highest memory,40 MiB,41 MiB,48 MiB,43 MiB")
	p.want(`document.getElementById("step-title").textContent`, "Step 3, 128 samples")
	var loss float64
	p.run(chromedp.Evaluate(`Number(document.querySelectorAll(".tile strong")[1].textContent)`, &loss))
	if loss < 5 || loss > 20 {
		t.Errorf("after a loss of 100 in the last step the page shows %g", loss)
	}
	p.want(`document.querySelectorAll(".tile .note")[1].textContent`, "smoothed; 100 in the last step")
	// Limits far above the data stand at the edge of a chart.
	if texts := p.drawn(); !strings.Contains(texts, "|↑ limit 64 MiB|") ||
		!strings.Contains(texts, "|step|") {
		t.Errorf("charts without a name of the axis or without the limit: %s", texts)
	}
	p.want(`document.querySelectorAll("#charts figure").length`, "6")
	p.want(`document.querySelectorAll("#memory-charts figure").length`, "1")
	p.want(`document.querySelectorAll("#layer-table tbody tr").length`, "12")
	p.want(`document.querySelectorAll("#layer-table .again").length`, "12")
	p.want(`document.querySelector("#layer-table .again").textContent`, "recomputed in 4 of 8")
	p.want(`document.querySelectorAll("#devices tbody tr").length`, "4")
	for _, colour := range []string{"forward", "backward", "recompute", "transfer"} {
		if n := p.colours("timeline", colour); n < 100 {
			t.Errorf("%d pixels of the timeline have the colour of %s", n, colour)
		}
	}
	if n := p.colours("bytes", "limit"); n < 500 {
		t.Errorf("%d pixels of the bytes have the colour of the limit", n)
	}
	if n := p.colours("memory-charts", "mark"); n < 50 {
		t.Errorf("%d pixels of the curve have the colour of the plan's point", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) != 1 || !strings.HasSuffix(p.asked[0], "/report.html") {
		t.Errorf("requested: %q", p.asked)
	}
}

// The page of a plan shows the step as planned, its bytes, the whole step over limits, and the schedules that
// were searched.
func TestPlanPage(t *testing.T) {
	p := newTab(t, 1600, 1200)
	p.open(planPage(t, 4, 8))
	p.want(`document.title`, "gpt, planned · Penstock")
	p.want(`[...document.querySelectorAll("main > section:not([hidden])")].map(e => e.id).join()`,
		"tiles,step,memory,others,layers,about")
	p.want(`[...document.querySelectorAll(".tile .name")].map(e => e.textContent).join()`,
		"Step, planned,Idle, planned,Peak memory, planned,Recomputed forwards")
	p.want(`[...document.querySelectorAll("#devices th")].slice(0, 6).map(e => e.textContent).join()`,
		"Device,Stages,Idle, planned,Recomputed forwards,Predicted peak,Limit")
	p.want(`[...document.querySelectorAll("#other-table th[scope=col]")].map(e => e.textContent).join()`,
		"Schedule,Micro-batches,Step,Lower bound,Peak memory,Rejected because")
	p.want(`[...document.querySelectorAll("#other-table tbody th")].map(e => e.textContent).join()`,
		"gpipe,1f1b,zb-v")
	p.want(`document.querySelector("#other-table .kept").closest("tr").firstChild.textContent`, "1f1b")
	for id, colours := range map[string][]string{"timeline": {"forward", "backward", "recompute"},
		"bytes": {"limit"}, "memory-charts": {"mark"}} {
		for _, colour := range colours {
			if n := p.colours(id, colour); n < 50 {
				t.Errorf("%d pixels of %s have the colour of %s", n, id, colour)
			}
		}
	}
	got := p.hover("timeline", left+4, planned+10)
	for _, want := range []string{"Forward · stage 0 · micro-batch 0", "As planned, on cpu:0",
		"17 MiB on the device afterwards"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if got := p.hover("bytes", 800, 100); !strings.Contains(got, "cpu:3: ") {
		t.Errorf("bytes: %q", got)
	}
	if got := p.hover("memory-charts", 300, 100); !strings.Contains(got, "Within ") ||
		!strings.Contains(got, "more than without recomputation") {
		t.Errorf("memory: %q", got)
	}
	narrow := newTab(t, 400, 800)
	narrow.open(planPage(t, 4, 8))
	narrow.want(`document.documentElement.scrollWidth`, "400")
	touched := newTab(t, 1000, 800)
	touched.run(chromedp.EmulateViewport(1000, 800, chromedp.EmulateTouch))
	touched.open(planPage(t, 4, 8))
	for _, screen := range []*tab{narrow, touched} {
		screen.want(`document.getElementById("keys").innerText`, "Tap an action to see what it is.")
	}
}

// Names are text, whatever is in them.
func TestHostileNames(t *testing.T) {
	hostile := []string{
		`<img src=x onerror="window.hacked=1">`, `</script><script>window.hacked=1</script>`,
		`<!--<script>`, `]]>`,
		`</title><script>window.hacked=1</script>`, `{{data}}`, `'; window.hacked=1; '`,
		"line\nbreak\u2028\u2029",
		`<a href="javascript:window.hacked=1">x</a>`, `${window.hacked=1}`, `__proto__`,
		`<style>*{display:none}</style>`,
	}
	content := page(t, 4, 8)
	r := &content.Run
	r.Layers = nil
	for i := range 1000 {
		name := fmt.Sprintf("%s %d", hostile[i%len(hostile)], i)
		r.Layers = append(r.Layers, report.Layer{Name: name, Type: name, Forward: 1, Backward: 1, Saved: 1})
	}
	r.Title = strings.Join(hostile, " ")
	r.Facts = nil
	for _, h := range hostile {
		r.Facts = append(r.Facts, report.Fact{Name: h, Value: h})
	}
	for i := range r.Plan.Devices {
		r.Plan.Devices[i].Name = hostile[i]
	}
	for _, h := range hostile {
		r.Others = append(r.Others, report.Other{Schedule: h, Lost: h})
	}
	p := newTab(t, 1600, 1200)
	p.open(content)
	p.want(`window.hacked`, "undefined")
	p.want(`document.querySelectorAll("script").length`, "2")
	p.want(`document.querySelectorAll("img, iframe, svg, a:not(.skip)").length`, "0")
	p.want(`document.querySelectorAll("style").length`, "1")
	p.want(`document.querySelectorAll("#layer-table tbody tr").length`, "1000")
	var names []string
	p.run(chromedp.Evaluate(`[...document.querySelectorAll("#layer-table tbody code")].map(e => `+
		`e.textContent)`, &names))
	for i, name := range names {
		if name != r.Layers[i].Name {
			t.Fatalf("layer %d is shown as %q, want %q", i, name, r.Layers[i].Name)
		}
	}
	p.want(`document.querySelector("h1").textContent`, r.Title)
	if got := p.hover("timeline", left+4, planned+10); !strings.Contains(got, hostile[0]) {
		t.Errorf("a device is shown as %q", got)
	}
	p.want(`window.hacked`, "undefined")
}

// A run without a recorded step, without numbers, or without a plan has a page as well.
func TestPartsOfARun(t *testing.T) {
	whole := page(t, 2, 4)
	for name, change := range map[string]func(*report.Page){
		"nothing":    func(p *report.Page) { *p = report.Page{} },
		"numbers":    func(p *report.Page) { p.Run, p.Curves = report.Run{Title: "numbers"}, nil },
		"plan alone": func(p *report.Page) { p.Run.Ran, p.History = nil, metrics.History{} },
		"ran alone":  func(p *report.Page) { p.Run.Plan = nil },
		"unpredicted": func(p *report.Page) {
			p.Run.Plan = oneFOneBPlan(t, 2, 4, false)
			p.Run.Ran = ran(t, p.Run.Plan)
		},
		"no curve": func(p *report.Page) {
			p.Curves = []report.Curve{{Layers: 1, Best: p.Curves[0].Best[:2]}}
		},
		"no limit": func(p *report.Page) {
			p.Run.Plan.Devices[0].Limit = 0
			p.Run.Plan.Devices[1].Limit = 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			content := whole
			content.Run.Plan = oneFOneBPlan(t, 2, 4, true)
			change(&content)
			p := newTab(t, 1000, 800)
			p.open(content)
			p.want(`document.querySelectorAll("h1").length`, "1")
			p.want(`document.getElementById("memory").hidden`,
				fmt.Sprint(len(content.Curves) == 0 || name == "no curve"))
		})
	}
}

// Open pages show what comes, and how the run ended.
func TestLiveUpdates(t *testing.T) {
	run := sample(t, 2, 4)
	first := run
	first.Plan, first.Ran = nil, nil
	past := numbers(400, 2)
	some := metrics.History{Steps: past.Steps[:10]}
	live := must.Get(report.NewLive(first, some))(t)
	server := httptest.NewServer(live)
	defer server.Close()
	defer live.Close()
	p := newTab(t, 1600, 1200)
	p.run(chromedp.Navigate(server.URL))
	p.until(`document.getElementById("live").textContent`, "live")
	steps := `document.querySelector(".tile strong").textContent`
	p.want(steps, "10")
	p.want(`document.getElementById("step").hidden`, "true")
	for _, s := range past.Steps[10:60] {
		live.Step(s)
	}
	live.Test(past.Tests[2])
	p.until(steps, "60")
	p.want(`document.querySelector(".tile .note").textContent`, "of 400, 6 min left")
	p.until(`document.querySelectorAll(".tile").length`, "5")
	validation := past.Tests[2] // after the same step
	validation.Validation, validation.TestLoss = true, new(0.5)
	live.Test(validation)
	p.until(`document.querySelectorAll(".tile").length`, "7")
	must.Do(t, live.SetRun(run))
	p.until(`document.getElementById("step").hidden`, "false")
	p.frame()
	if n := p.colours("timeline", "backward"); n < 100 {
		t.Errorf("%d pixels of the timeline have the colour of a backward", n)
	}
	another := newTab(t, 400, 800)
	another.run(chromedp.Navigate(server.URL))
	another.until(steps, "60")
	live.Step(past.Steps[60])
	p.until(steps, "61")
	another.until(steps, "61")
	run.Ended = &report.Ended{How: "failed", Why: "step 62: loss NaN", Time: past.Steps[60].Time + 1}
	must.Do(t, live.SetRun(run))
	live.End("failed")
	for _, tab := range []*tab{p, another} {
		tab.until(`document.getElementById("live").textContent`, "failed")
		tab.want(`document.getElementById("ended").textContent`, "The run failed: step 62: loss NaN")
		tab.want(`document.querySelector(".tile .note").textContent`, "of 400")
	}
}
