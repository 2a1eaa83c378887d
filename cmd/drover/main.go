// Command drover is Drover in one binary: the server, the worker, and the tool
// for people and scripts that drives them.
package main

import "os"

func main() { os.Exit(newApp().run(os.Args[1:])) }
