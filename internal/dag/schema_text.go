package dag

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	jskind "github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/drover-dev/drover"
)

const (
	causeCap   = 4  // causes of one complaint that are told
	causeDepth = 3  // how far down causes of causes are told
	listCap    = 12 // allowed values that are told
)

var english = message.NewPrinter(language.English)

// leafText says what is wrong at a place and how it would be right. The place
// itself is told by whoever calls.
func leafText(ve *jsonschema.ValidationError) string { return textOf(ve, causeDepth) }

// textOf tells the causes of causes down to depth, so that a schema that refers
// to itself does not make them countless.
func textOf(ve *jsonschema.ValidationError, depth int) string {
	switch k := ve.ErrorKind.(type) {
	case *jskind.Type:
		return mistyped(k)
	case *jskind.Enum:
		return oneOf(k.Want, k.Got)
	case *jskind.Const:
		return oneOf([]any{k.Want}, k.Got)
	case *jskind.MinLength:
		return fmt.Sprintf("this has %s; write at least %d", counted(k.Got, "character"), k.Want)
	case *jskind.MaxLength:
		return fmt.Sprintf("this has %s; at most %d are allowed", counted(k.Got, "character"), k.Want)
	case *jskind.Pattern:
		return fmt.Sprintf("%s does not match the pattern %s", shown(k.Got), clip(k.Want, 100))
	case *jskind.Format:
		what := k.Want
		if what == "regex" {
			what = "regular expression"
		}
		return clip(fmt.Sprintf("%s is not a valid %s: %v", shown(k.Got), what, k.Err), 300)
	case *jskind.Minimum:
		return fmt.Sprintf("this is %s and must be %s or more", decimal(k.Got), decimal(k.Want))
	case *jskind.Maximum:
		return fmt.Sprintf("this is %s and must be %s or less", decimal(k.Got), decimal(k.Want))
	case *jskind.ExclusiveMinimum:
		return fmt.Sprintf("this is %s and must be more than %s", decimal(k.Got), decimal(k.Want))
	case *jskind.ExclusiveMaximum:
		return fmt.Sprintf("this is %s and must be less than %s", decimal(k.Got), decimal(k.Want))
	case *jskind.MultipleOf:
		return fmt.Sprintf("this is %s and must be a multiple of %s", decimal(k.Got), decimal(k.Want))
	case *jskind.MinItems:
		return fmt.Sprintf("this list has %s; give at least %d", counted(k.Got, "item"), k.Want)
	case *jskind.MaxItems:
		return fmt.Sprintf("this list has %s; at most %d are allowed", counted(k.Got, "item"), k.Want)
	case *jskind.AdditionalItems:
		return fmt.Sprintf("this list is too long; leave out the last %s", counted(k.Count, "item"))
	case *jskind.UniqueItems:
		return fmt.Sprintf("items %d and %d of this list are equal; each may be there once", k.Duplicates[0], k.Duplicates[1])
	case *jskind.Contains:
		return "no item of this list is what one of them must be" + because(ve, depth)
	case *jskind.MinContains:
		return fmt.Sprintf("%s of this list %s what at least %d must be", counted(len(k.Got), "item"), be(len(k.Got)), k.Want) + because(ve, depth)
	case *jskind.MaxContains:
		return fmt.Sprintf("%s of this list %s what at most %d may be", counted(len(k.Got), "item"), be(len(k.Got)), k.Want)
	case *jskind.MinProperties:
		return fmt.Sprintf("this object has %s; give at least %d", counted(k.Got, "property"), k.Want)
	case *jskind.MaxProperties:
		return fmt.Sprintf("this object has %s; at most %d are allowed", counted(k.Got, "property"), k.Want)
	case *jskind.Required:
		return fmt.Sprintf("this object needs the %s", named(k.Missing))
	case *jskind.AdditionalProperties:
		return fmt.Sprintf("this object cannot have the %s", named(k.Properties))
	case *jskind.DependentRequired:
		return fmt.Sprintf("with %s this object needs the %s", shown(k.Prop), named(k.Missing))
	case *jskind.Dependency:
		return fmt.Sprintf("with %s this object needs the %s", shown(k.Prop), named(k.Missing))
	case *jskind.PropertyNames:
		why := ""
		for _, l := range causes(ve) { // they tell of the name, wherever they say they are
			why = ": " + textOf(l, 0)
			break
		}
		return clip(fmt.Sprintf("no property here can be called %s", shown(k.Property))+why, 300)
	case *jskind.FalseSchema:
		return "nothing is allowed here; leave it out"
	case *jskind.Not:
		return "this is what the schema excludes (its \"not\")"
	case *jskind.RefCycle:
		return "the schema refers to itself in a circle here"
	case *jskind.OneOf:
		if len(k.Subschemas) > 1 {
			return fmt.Sprintf("this fits forms %d and %d of the schema's oneOf; it must fit exactly one", k.Subschemas[0]+1, k.Subschemas[1]+1)
		}
		return noForm(ve, depth)
	case *jskind.AnyOf:
		return noForm(ve, depth)
	}
	return clip(ve.ErrorKind.LocalizedString(english), 300)
}

// causes are the ends of what made ve so.
func causes(ve *jsonschema.ValidationError) []*jsonschema.ValidationError {
	var out []*jsonschema.ValidationError
	for _, c := range ve.Causes {
		out = leaves(c, out)
	}
	return out
}

// noForm tells why each of several allowed forms does not fit.
func noForm(ve *jsonschema.ValidationError, depth int) string {
	return "this fits none of the allowed forms" + because(ve, depth)
}

// because tells the first causes of ve, each with its place below that of ve.
func because(ve *jsonschema.ValidationError, depth int) string {
	if depth == 0 {
		return ""
	}
	var why []string
	for _, l := range causes(ve) {
		if len(why) == causeCap {
			break
		}
		text := textOf(l, depth-1)
		if n := len(ve.InstanceLocation); len(l.InstanceLocation) > n {
			text = fmt.Sprintf("at %s %s", instancePath(nil, l.InstanceLocation[n:]), text)
		}
		why = append(why, text)
	}
	if len(why) == 0 {
		return ""
	}
	return clip(": "+strings.Join(why, "; or "), 300)
}

// jsonType are the types of JSON as they stand in a sentence.
var jsonType = map[string]string{"object": "an object", "array": "a list", "string": "a string", "number": "a number", "integer": "an integer", "boolean": "true or false", "null": "null"}

func mistyped(k *jskind.Type) string {
	var want []string
	for _, w := range k.Want {
		want = append(want, jsonType[w])
	}
	must := strings.Join(want, " or ")
	switch {
	case k.Got == "number" && must == jsonType["integer"]:
		return "this must be an integer and has a fraction"
	case k.Got == "boolean":
		return "this must be " + must + " and is a boolean"
	}
	return "this must be " + must + " and is " + jsonType[k.Got]
}

// oneOf says which values are allowed.
func oneOf(want []any, got any) string {
	var list []string
	for i, v := range want {
		if i == listCap {
			list = append(list, fmt.Sprintf("… (%d more)", len(want)-i))
			break
		}
		list = append(list, shown(v))
	}
	if len(list) == 1 {
		return fmt.Sprintf("this must be %s and is %s", list[0], shown(got))
	}
	return fmt.Sprintf("this must be one of %s and is %s", strings.Join(list, ", "), shown(got))
}

// shown is a value as JSON, if need be its beginning.
func shown(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "a value that cannot be shown"
	}
	return clip(strings.TrimSpace(b.String()), 60)
}

// decimal is a number as it was written; JSON has no others than decimals.
func decimal(r *big.Rat) string {
	digits, _ := r.FloatPrec()
	return clip(r.FloatString(digits), 40)
}

func counted(n int, what string) string {
	switch {
	case n == 0:
		return "no " + plural(what)
	case n == 1:
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + plural(what)
}

func plural(s string) string {
	if stem, ok := strings.CutSuffix(s, "y"); ok {
		return stem + "ies"
	}
	return s + "s"
}

func be(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func named(names []string) string {
	var list []string
	for _, n := range names {
		list = append(list, shown(n))
	}
	what := "property "
	if len(names) > 1 {
		what = "properties "
	}
	return what + clip(strings.Join(list, ", "), 200)
}

// reason is the first thing wrong in a validation error, as text.
func reason(err error) string {
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err.Error()
	}
	return leafText(leaves(ve, nil)[0])
}

// instancePath is at, and from there on the tokens of a place in a document.
func instancePath(at *path, tokens []string) *path {
	for _, t := range tokens {
		if n, err := strconv.Atoi(t); err == nil && n >= 0 && strconv.Itoa(n) == t {
			at = at.at(n)
		} else {
			at = at.member(t)
		}
	}
	return at
}

// fieldErrors names the fields of the input that a leaf complains about.
func fieldErrors(ve *jsonschema.ValidationError, root string) []drover.FieldError {
	at := instancePath((*path)(nil).member(root), ve.InstanceLocation)
	each := func(names []string, format string, args ...any) (out []drover.FieldError) {
		for _, m := range names {
			out = append(out, drover.FieldError{Field: at.member(m).String(), Message: fmt.Sprintf(format, args...)})
		}
		return out
	}
	switch k := ve.ErrorKind.(type) {
	case *jskind.Required:
		return each(k.Missing, "this is required and missing")
	case *jskind.DependentRequired:
		return each(k.Missing, "this is missing; it is required together with %s", shown(k.Prop))
	case *jskind.Dependency:
		return each(k.Missing, "this is missing; it is required together with %s", shown(k.Prop))
	case *jskind.AdditionalProperties:
		return each(k.Properties, "the schema has no such property; leave it out, or correct its name")
	}
	return []drover.FieldError{{Field: at.String(), Message: leafText(ve)}}
}
