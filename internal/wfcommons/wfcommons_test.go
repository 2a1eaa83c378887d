package wfcommons

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

func read(t *testing.T, file string) []byte {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func TestVersion15(t *testing.T) {
	t.Parallel()
	got, err := Convert(read(t, "montage-1.5.json"), Options{Scale: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "montage-small" || got.Tasks != 16 || got.Makespan != 3290*time.Millisecond {
		t.Errorf("import = %q, %d tasks, %s", got.Name, got.Tasks, got.Makespan)
	}
	for _, want := range []string{
		"pipeline: montage-small\ndescription: \"A mosaic of four",
		"\n  mproject_id0000001: {run: simulate, with: {sleep: 1.25s}}\n",
		"\n  mdifffit_id0000005: {run: simulate, with: {sleep: 0.075s}, needs: [mproject_id0000001, mproject_id0000002]}\n",
		"\n  mviewer_id0000016: {run: simulate, with: {sleep: 0.2s}, needs: [madd_id0000015]}\n",
	} {
		if !strings.Contains(string(got.Definition), want) {
			t.Errorf("the definition lacks %q:\n%s", want, got.Definition)
		}
	}
	want := `files: 20 with 20480 bytes: tasks move no data
command of 16 tasks: no program is run
coreCount of 16 tasks, up to 2: a task takes one slot of a worker
machines of 16 tasks: any worker of the queue runs them
memoryInBytes of 16 tasks, up to 4096: no memory is taken
readBytes of 16 tasks, up to 1000: nothing is read
writtenBytes of 16 tasks, up to 2000: nothing is written
avgCPU of 16 tasks: tasks only sleep
machines: 1: any worker of the queue runs a task`
	if lost := strings.Join(got.Lost, "\n"); lost != want {
		t.Errorf("lost:\n%s\nwant\n%s", lost, want)
	}
}

func TestComputeTakesWhatWasRecorded(t *testing.T) {
	t.Parallel()
	got, err := Convert(read(t, "montage-1.5.json"), Options{Scale: 1, Compute: true, Queue: "cpu", Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"pipeline: m\n", "defaults: {queue: cpu}\n", "madd_id0000015: {run: simulate, with: {compute: 2.745s, sleep: 3.355s},", "mbgmodel_id0000009: {run: simulate, with: {compute: 3.4s},",
	} {
		if !strings.Contains(string(got.Definition), want) {
			t.Errorf("the definition lacks %q:\n%s", want, got.Definition)
		}
	}
	if lost := strings.Join(got.Lost, "\n"); !strings.Contains(lost, "avgCPU of 1 task: a task computes on one processor") {
		t.Errorf("lost:\n%s", lost)
	}
}

func TestVersion14(t *testing.T) {
	t.Parallel()
	got, err := Convert(read(t, "blast-1.4.json"), Options{Scale: 1000})
	if err != nil {
		t.Fatal(err)
	}
	want := `# A scientific workflow in WfFormat 1.4, imported: its tasks sleep for the recorded times, times 1000.
pipeline: blast-small
description: "BLAST small"
tasks:
  split_fasta_1: {run: simulate, with: {sleep: 1500s}}
  blastall_2: {run: simulate, with: {sleep: 6000s}, timeout: 12000s, needs: [split_fasta_1]}
  blastall_3: {run: simulate, with: {sleep: 5250s}, timeout: 10500s, needs: [split_fasta_1]}
  cat_blast_4: {run: simulate, with: {sleep: 250s}, needs: [blastall_2, blastall_3]}
`
	if string(got.Definition) != want {
		t.Errorf("definition:\n%s\nwant\n%s", got.Definition, want)
	}
	wantLost := `1 task has no parents and got those that write the files they read
files: 6 with 1280 bytes: tasks move no data
cores of 3 tasks, up to 4: a task takes one slot of a worker
machine of 2 tasks: any worker of the queue runs them
priority of 1 task, up to 3: all tasks have the job's class
type of 4 tasks: all tasks compute
machines: 2: any worker of the queue runs a task`
	if lost := strings.Join(got.Lost, "\n"); lost != wantLost {
		t.Errorf("lost:\n%s\nwant\n%s", lost, wantLost)
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	t.Parallel()
	got, err := Convert([]byte(`{"name":"9 lives!","schemaVersion":"1.5","workflow":{"specification":{"tasks":[{"name":"a","id":"1","parents":[],"children":["2"],"strange":1},{"name":"A","id":"2","parents":[],"children":[]},{"name":"a","id":"1#","parents":[],"children":[]}]}}}`),
		Options{Scale: 1, Unknown: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	const want = "pipeline: w-9-lives\ndescription: \"9 lives!\"\ntasks:\n  a_1: {run: simulate, with: {sleep: 2s}}\n  a_2: {run: simulate, with: {sleep: 2s}, needs: [a_1]}\n  a_1-2: {run: simulate, with: {sleep: 2s}}\n"
	if !strings.HasSuffix(string(got.Definition), want) {
		t.Errorf("definition:\n%s\nwant\n%s", got.Definition, want)
	}
	if lost := strings.Join(got.Lost, "\n"); lost != "3 tasks have no runtimeInSeconds and sleep for 2s\nstrange of 1 task, up to 1: WfFormat does not know it either" {
		t.Errorf("lost:\n%s", lost)
	}
}

func TestMistakesHaveTheirPlace(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		`[]`:                                 "this is not WfFormat",
		`{"name":"x","schemaVersion":"1.2"}`: `schemaVersion is "1.2"; 1.4, 1.5, 1.6 can be read`,
		`{"schemaVersion":"1.5","workflow":{"specification":{"tasks":[]}}}`:                                                                    "workflow.specification.tasks: there are no tasks",
		`{"schemaVersion":"1.5","workflow":{"specification":{"tasks":[{"name":"a"}]}}}`:                                                        "workflow.specification.tasks[0].id: this is required",
		`{"schemaVersion":"1.5","workflow":{"specification":{"tasks":[{"id":"a"},{"id":"a"}]}}}`:                                               `workflow.specification.tasks[1]: "a" names another task too`,
		`{"schemaVersion":"1.5","workflow":{"specification":{"tasks":[{"id":"a","parents":["b"]}]}}}`:                                          `a.parents: there is no task "b"`,
		`{"schemaVersion":"1.5","workflow":{"specification":{"tasks":[{"id":"a","children":["a"]}]}}}`:                                         `a.children: the task names itself`,
		`{"schemaVersion":"1.5","workflow":{"specification":{"tasks":[{"id":"a"}]},"execution":{"tasks":[{"id":"b","runtimeInSeconds":1}]}}}`:  `workflow.execution.tasks[0].id: there is no task "b"`,
		`{"schemaVersion":"1.5","workflow":{"specification":{"tasks":[{"id":"a"}]},"execution":{"tasks":[{"id":"a","runtimeInSeconds":-1}]}}}`: `runtimeInSeconds: task "a" ran for -1 s`,
		`{"schemaVersion":"1.4","workflow":{"tasks":[{"name":"a"},{"name":"b","id":3}]}}`:                                                      "workflow.tasks[1]: cannot be read",
	} {
		_, err := Convert([]byte(src), Options{Scale: 1})
		var e *drover.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: error = %v", src, err)
			continue
		}
		got := e.Detail
		if len(e.Fields) > 0 {
			got = e.Fields[0].Field + ": " + e.Fields[0].Message
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s\ngot  %s\nwant %s", src, got, want)
		}
	}
}

func FuzzConvert(f *testing.F) {
	for _, file := range []string{"montage-1.5.json", "blast-1.4.json"} {
		src, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		got, err := Convert(src, Options{Scale: 0.5})
		if err == nil && (len(got.Definition) == 0 || got.Tasks == 0) {
			t.Errorf("nothing came of %q", src)
		}
	})
}
