// Package ingestion is an example: a video becomes a dataset of measured and
// judged frames, described by a manifest.
//
// pipeline.yaml is the whole of it. Its first steps are shell scripts under
// steps/, run by the built-in exec executor; the others are handlers of the Go
// program under worker/. Package features measures pictures, package dataset
// judges samples and writes the manifest; both know nothing of Drover.
package ingestion

import _ "embed"

// Pipeline is the definition in pipeline.yaml.
//
//go:embed pipeline.yaml
var Pipeline []byte
