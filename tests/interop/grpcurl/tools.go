//go:build tools

// Package grpcurl pins the tool of that name, which calls gRPC services by reflection.
package grpcurl

import _ "github.com/fullstorydev/grpcurl/cmd/grpcurl"
