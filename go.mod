module github.com/drover-dev/drover

go 1.26
