//go:build tools

// Package h2spec pins the conformance tests of HTTP/2, which are built from here.
package h2spec

import _ "github.com/summerwind/h2spec/cmd/h2spec"
