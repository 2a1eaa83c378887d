package flow_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/flow"
)

func Example() {
	p := flow.New("dataset-ingestion")
	decode := p.Task("decode",
		flow.Run("exec"),
		flow.With(map[string]any{"command": []any{"./decode.sh", flow.Input("object_uri")}}))
	extract := p.Task("extract",
		flow.Run("features"),
		flow.ForEach(decode.Output("segments")))
	infer := p.Task("infer",
		flow.Run("infer"),
		flow.Over(extract), // element i starts when extract[i] is done
		flow.Queue("gpu"),
		flow.Timeout(5*time.Minute))
	p.Task("manifest",
		flow.Run("manifest"),
		flow.With(map[string]any{"scores": infer.Output()}))

	definition, err := p.JSON()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d bytes for client.ApplyPipeline\n", len(definition))
	// Output: 385 bytes for client.ApplyPipeline
}

func ExampleChain() {
	p := flow.New("report")
	flow.Chain(
		p.Task("collect", flow.Run("collect")),
		p.Task("render", flow.Run("render")),
		p.Task("send", flow.Run("mail.send")),
	)
	definition, _ := p.JSON()
	fmt.Println(string(definition))
	// Output: {"pipeline":"report","tasks":[{"name":"collect","run":"collect"},{"name":"render","needs":["collect"],"run":"render"},{"name":"send","needs":["render"],"run":"mail.send"}]}
}

// Three resizes at once, then one page of them all: a fan-out with its fan-in.
func ExampleChord() {
	p := flow.New("page")
	resize := p.Map("resize", []int{64, 256, 1024}, flow.Run("resize"))
	flow.Chord(resize, p.Task("page", flow.Run("page")))
	definition, _ := p.JSON()
	fmt.Println(string(definition))
	// Output: {"pipeline":"page","tasks":[{"for_each":[64,256,1024],"name":"resize","run":"resize"},{"name":"page","needs":["resize"],"run":"page","with":"${{ tasks.resize.output }}"}]}
}

// A chain may have groups in it, and a group chains.
func ExampleGroup() {
	p := flow.New("order")
	task := func(name string) *flow.Task { return p.Task(name, flow.Run(name)) }
	flow.Chain(
		task("paid"),
		flow.Group(
			flow.Chain(task("pick"), task("pack")),
			task("invoice"),
		),
		task("ship"),
	)
	definition, _ := p.JSON()
	fmt.Println(string(definition))
	// Output: {"pipeline":"order","tasks":[{"name":"paid","run":"paid"},{"name":"pick","needs":["paid"],"run":"pick"},{"name":"pack","needs":["pick"],"run":"pack"},{"name":"invoice","needs":["paid"],"run":"invoice"},{"name":"ship","needs":["pack","invoice"],"run":"ship"}]}
}

// Large orders are looked at by a person, others go through; both are shipped.
func ExampleSwitch() {
	p := flow.New("order")
	task := func(name string) *flow.Task { return p.Task(name, flow.Run(name)) }
	flow.Chain(
		task("price"),
		flow.Switch(
			flow.Case{If: "tasks.price.output.total > 1000.0", Then: task("review")},
			flow.Case{Then: task("accept")},
		),
		task("ship"),
	)
	definition, err := p.JSON()
	fmt.Println(string(definition), err)
	// Output: {"pipeline":"order","tasks":[{"name":"price","run":"price"},{"if":"(tasks.price.output.total > 1000.0)","name":"review","needs":["price"],"run":"review"},{"if":"!(tasks.price.output.total > 1000.0)","name":"accept","needs":["price"],"run":"accept"},{"name":"ship","needs":["review","accept"],"run":"ship","when":"none_failed_min_one_success"}]} <nil>
}

// One task for each element of a list that another task gives, and one more for
// each of those, which starts as soon as its own is done.
func ExamplePipeline_Map() {
	p := flow.New("thumbnails")
	list := p.Task("list", flow.Run("list"))
	shrink := p.Map("shrink", list.Output("files"), flow.Run("shrink"), flow.Queue("cpu"))
	p.Map("upload", shrink, flow.Run("upload"))
	definition, _ := p.JSON()
	fmt.Println(string(definition))
	// Output: {"pipeline":"thumbnails","tasks":[{"name":"list","run":"list"},{"for_each":"${{ tasks.list.output.files }}","name":"shrink","queue":"cpu","run":"shrink"},{"for_each":"shrink","name":"upload","run":"upload"}]}
}

// Addresses in lists of two, so that a task is worth its overhead.
func ExamplePipeline_Chunks() {
	p := flow.New("letters")
	p.Chunks("send", []string{"ada", "bob", "cyd"}, 2, flow.Run("mail.send"))
	definition, _ := p.JSON()
	fmt.Println(string(definition))
	// Output: {"pipeline":"letters","tasks":[{"for_each":[["ada","bob"],["cyd"]],"name":"send","run":"mail.send"}]}
}

func ExampleJoin() {
	p := flow.New("pack")
	weigh := p.Task("weigh", flow.Run("weigh"))
	label := p.Task("label", flow.Run("label"))
	flow.Join(p.Task("ship", flow.Run("ship")), weigh, label)
	definition, _ := p.JSON()
	fmt.Println(string(definition))
	// Output: {"pipeline":"pack","tasks":[{"name":"weigh","run":"weigh"},{"name":"label","run":"label"},{"name":"ship","needs":["weigh","label"],"run":"ship"}]}
}

func ExamplePipeline_JSON_problems() {
	p := flow.New("pack")
	a := p.Task("a", flow.Run("x"), flow.Timeout(-time.Second))
	p.Task("b", flow.Run("x"), flow.Over(a))
	_, err := p.JSON()
	var problems *drover.Error
	if errors.As(err, &problems) {
		for _, f := range problems.Fields {
			fmt.Printf("%s: %s\n", f.Field, f.Message)
		}
	}
	// Output:
	// tasks.a.timeout: duration -1s is negative
	// tasks.b.for_each: task "a" is not a map, so there is nothing to go over element by element; to map over a list in its output, write for_each: "${{ tasks.a.output.LIST }}"
}

func ExampleRef() {
	p := flow.New("p")
	list := p.Task("list", flow.Run("x"))
	fmt.Println(list.Output("files").At(0).Field("a name"))
	fmt.Println("s3://bucket/" + flow.Input("path").String())
	// Output:
	// ${{ tasks.list.output.files[0]["a name"] }}
	// s3://bucket/${{ input.path }}
}
