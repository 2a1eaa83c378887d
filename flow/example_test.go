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
