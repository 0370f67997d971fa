module penstock

go 1.26
